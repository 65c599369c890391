"""The stage on what a company has: a source and a warehouse on S3, a catalogue and a source in PostgreSQL."""

import gzip
import json
from typing import Any

import boto3
import psycopg
import pytest

from assets.environment import environment
from pipeline.core.storage import Store
from pipeline.recipe.sources import ExportSource
from pipeline.traces.lake import LakeConfig
from pipeline.traces.materialize import read
from pipeline.traces.records import GovernedTraces

from .conftest import govern, observation


def put(bucket: str, key: str, *rows: dict[str, Any]) -> None:
    body = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=body)


@pytest.fixture
def lake(bucket: str, postgres_url: str) -> LakeConfig:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for table in ("iceberg_tables", "iceberg_namespace_properties"):
            connection.execute(f"drop table if exists {table}")
    properties = environment().lake_properties(is_rest=False)
    return LakeConfig(catalogue="postgres", uri=postgres_url, warehouse=f"s3://{bucket}/lake", properties=properties)


def ids(store: Store, lake: LakeConfig, governed: GovernedTraces) -> list[str]:
    return read(store, lake, governed.iteration.dataset, ["trace_id"])["trace_id"].to_pylist()


@pytest.mark.slow
def test_from_s3_to_s3_with_a_catalogue_in_postgres(store: Store, lake: LakeConfig, bucket: str) -> None:
    source = ExportSource(kind="langfuse_export", uri=f"s3://{bucket}/langfuse")
    put(bucket, "langfuse/observations_v2/2026-01-05.jsonl.gz", observation(1), observation(2, metadata={}))
    first = govern(store, source, source.uri, lake)
    assert (first.admitted, ids(store, lake, first)) == (1, ["t1"])
    put(bucket, "langfuse/observations_v2/2026-01-06.jsonl.gz", observation(3))
    second = govern(store, source, source.uri, lake)
    assert ids(store, lake, second) == ["t1", "t3"]
    assert ids(store, lake, first) == ["t1"]
    assert govern(store, source, source.uri, lake) == second
    assert not list(store.root.rglob("*.parquet"))
