"""The stage on what a company has: a source and a warehouse on S3, a catalogue and a source in PostgreSQL."""

from __future__ import annotations

import gzip
import json
import threading
from typing import Any

import boto3
import psycopg
import pytest

from assets.environment import environment
from pipeline.core.storage import Store
from pipeline.recipe.traces import ExportSource
from pipeline.traces import days as stage
from pipeline.traces.lake import LakeConfig, open_lake
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


@pytest.mark.slow
def test_of_two_runs_on_one_day_the_later_commit_gives_way(
    store: Store, lake: LakeConfig, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ExportSource(kind="langfuse_export", uri=f"s3://{bucket}/langfuse")
    put(bucket, "langfuse/observations_v2/2026-01-05.jsonl.gz", observation(1))
    govern(store, source, source.uri, lake)
    put(bucket, "langfuse/observations_v2/a.jsonl.gz", observation(2))
    reached, go_on = threading.Event(), threading.Event()
    original = stage.write_shard

    def waits(share: Any) -> list[str]:
        if threading.current_thread() is slow:
            reached.set()
            assert go_on.wait(300)
        return original(share)

    refused: list[ValueError] = []

    def run() -> None:
        try:
            govern(Store(store.root.with_name("other")), source, source.uri, lake)
        except ValueError as error:
            refused.append(error)

    monkeypatch.setattr(stage, "write_shard", waits)
    slow = threading.Thread(target=run)
    slow.start()
    assert reached.wait(300)
    put(bucket, "langfuse/observations_v2/b.jsonl.gz", observation(3))
    winner = govern(store, source, source.uri, lake)
    go_on.set()
    slow.join(300)
    (error,) = refused
    assert "2026-01-05" in str(error) and "again" in str(error)
    assert sorted(ids(store, lake, winner)) == ["t1", "t2", "t3"]
    with open_lake(lake) as opened:
        assert opened.digests()["2026-01-05"] == winner.days[0].digest
