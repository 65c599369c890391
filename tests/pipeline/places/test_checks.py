"""What is known to go wrong before a run is made: real folders, a real bucket, a database."""

import errno
import hashlib
import os
import sqlite3
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import boto3
import fsspec
import pytest

from pipeline.demo import MODEL_DIR
from pipeline.places.checks import Places, place_faults, source_faults
from pipeline.places.disk import folder_faults
from pipeline.recipe import Recipe, load
from pipeline.recipe.formats import Paths, RowField
from pipeline.recipe.sources import ExportSource, RowsSource, SourceSection
from pipeline.serving.endpoint import Endpoint
from pipeline.traces.lake_config import LakeConfig
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address
from tests.servers import answering

EMBEDDED = Path(__file__).parents[3] / "jobs" / "recipes" / "embedded.yaml"


def recipe(root: Path, *overrides: str) -> Recipe:
    return load(EMBEDDED, [f"data_root='{root / 'data'}'", f"base_model.uri='{MODEL_DIR}'", *overrides])


def of(section: SourceSection, uri: str) -> list[str]:
    return source_faults(Address(section, uri))


def lake(warehouse: str) -> Places:
    properties = {"s3.endpoint": os.environ.get("AWS_ENDPOINT_URL", "")}
    return Places(lake=LakeConfig(catalogue="sqlite", uri="sqlite://", warehouse=warehouse, properties=properties))


def export(uri: Any) -> list[str]:
    return of(ExportSource(kind="langfuse_export", uri=str(uri)), str(uri))


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    wrong = recipe(tmp_path, "base_model.uri=/models/none", f"data_root={tmp_path / 'file' / 'data'}")
    source = ExportSource(kind="langfuse_export", uri="/exports/none")
    written = {"rollout.export_to": "/proc/models"}
    places = lake("file:///proc/lake")._replace(source=Address(source, source.uri), stores=written)
    faults = place_faults(wrong, places)
    fields = [fault.split(":")[0] for fault in faults]
    assert fields == ["data_root", "traces.source", "rollout.export_to", "traces.lake.warehouse"]
    assert all(fault.endswith(".") and "\n" not in fault for fault in faults)


@pytest.mark.parametrize(
    ("root", "complaint"),
    [
        ("/proc/none", r"data_root: /proc/none: a file cannot be written in /proc \(.+\)\. Point it"),
        ("s3://bucket/root", "is no directory of this machine"),
        ("FILE/data", r"cannot be written in .*file \(Not a directory\)"),
    ],
)
def test_a_data_root_that_cannot_be_written_is_a_fault(tmp_path: Path, root: str, complaint: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=complaint):
        raise ValueError(*folder_faults(root.replace("FILE", str(tmp_path / "file")), "data_root"))


def test_a_disk_too_small_for_an_iteration_is_a_fault(tmp_path: Path) -> None:
    """Checkpoints by the million of a real model on a real disk: more than there is of any."""
    wide = ["training.lora=null", "training.checkpoints.keep_last=100000000"]
    (fault,) = place_faults(recipe(tmp_path, *wide), Places())
    assert "free, and an iteration writes about" in fault
    assert fault.endswith("or lower training.checkpoints.keep_last.")


@pytest.mark.slow
def test_a_bucket_that_does_not_exist_is_named(bucket: str, tmp_path: Path) -> None:
    (fault,) = export("s3://no-such-bucket-here/langfuse")
    assert "NoSuchBucket" in fault and "correct its name" in fault
    (fault,) = export(f"s3://{bucket}/langfuse")
    assert f"s3://{bucket}/langfuse holds no object" in fault
    boto3.client("s3").put_object(Bucket=bucket, Key="langfuse/observations_v2/a.jsonl", Body=b"{}")
    assert export(f"s3://{bucket}/langfuse") == []
    (fault,) = place_faults(recipe(tmp_path), lake("s3://no-such/lake"))
    assert fault.startswith("traces.lake.warehouse: s3://no-such/lake cannot be used: ")
    assert place_faults(recipe(tmp_path), lake(f"s3://{bucket}/lake")) == []


def test_a_database_is_reached_and_its_query_asked(tmp_path: Path) -> None:
    fields: dict[RowField, Paths] = {"prompt": "q", "completion": "a", "time": "at"}
    section, url = RowsSource(query="SELECT * FROM calls", since=date(2026, 1, 5), fields=fields), tmp_path / "calls.db"
    with closing(sqlite3.connect(url)) as connection:
        (fault,) = of(section, f"sqlite:///{url}")
        assert "no such table: calls" in fault and fault.endswith("TRACES_DATABASE_URL and traces.source.query.")
        connection.executescript("CREATE TABLE calls (q, a, at); INSERT INTO calls VALUES ('Q', 'A', '2026-01-05')")
    assert of(section, f"sqlite:///{url}") == []


def test_a_store_that_is_not_s3_is_listed() -> None:
    """gs:// goes this way, with another driver of fsspec's."""
    section = RowsSource(uri="memory://logs/calls", fields={"prompt": "q", "completion": "a"}, day=date(2026, 1, 5))
    assert "memory://logs/calls holds no object" in of(section, section.uri)[0]
    fsspec.filesystem("memory").pipe("/logs/calls/a/1.jsonl", b'{"q": "Hi", "a": "Yes"}\n')
    assert of(section, section.uri) == []
    source = open_source(Address(section, section.uri))
    (rows,) = (rows for part in source.parts() for rows in source.rows(part, hashlib.sha256()))
    assert [trace.completion for trace in rows.traces] == ["Yes"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_mount_without_hard_links_is_named(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, target: Path) -> None:
        """As a mount of SMB, gcsfuse or Azure Files answers it."""
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    (fault,) = folder_faults(str(tmp_path / "root"), "data_root")
    assert "a file cannot be linked (hard links)" in fault and fault.endswith("Point it to a local disk.")
    assert list(tmp_path.iterdir()) == []


def test_an_endpoint_is_asked_with_its_key() -> None:
    def faults_of(url: str, key: str) -> list[str]:
        return place_faults(load(EMBEDDED), Places(endpoints={"JUDGE": Endpoint(url, key)}))

    with answering(lambda asked: (200 if asked.headers["Authorization"] == "Bearer right" else 401, b"")) as address:
        url = f"{address}/v1"
        assert faults_of(url, "right") == []
        (fault,) = faults_of(url, "wrong")
        assert fault == "JUDGE_URL: it refuses the key (401). Set JUDGE_API_KEY to one that is valid."
    (fault,) = faults_of(url, "right")
    assert fault.startswith("JUDGE_URL: no answer (")
