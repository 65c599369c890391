"""Rows of Parquet files through the stage `traces`."""

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.storage import Store
from pipeline.recipe.sources import RowsSource
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read as read_dataset
from pipeline.traces.records import GovernedTraces, Reason
from tests.pipeline.traces.conftest import govern

pytestmark = pytest.mark.slow

EKS = "What are the advantages of EKS Auto Mode?"
COLUMNS = {"prompt": "input", "completion": "output"}


def row(output: str, prompt: Any = EKS, **more: Any) -> dict[str, Any]:
    return {"input": prompt, "output": output, **more}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def run(store: Store, uri: object, **section: Any) -> GovernedTraces:
    source = RowsSource(uri=str(uri), licence="own", day=date(2026, 1, 5), **section)
    return govern(store, source, source.uri)


def rows_of(store: Store, governed: GovernedTraces) -> list[dict[str, Any]]:
    return read_dataset(store, local_lake(store), governed.iteration.dataset).to_pylist()


def test_rows_say_consent_owner_and_time_themselves(store: Store, tmp_path: Path) -> None:
    chat = json.dumps([{"role": "system", "content": "Be brief."}, {"role": "user", "content": EKS}])
    told = {"who": "u1", "user_consent": True, "at": datetime(2026, 1, 7, 12)}
    rows = [row("Yes.", chat, **told), row("No.", **{**told, "user_consent": None})]
    rows += [row("Hm.", **{**told, "at": None}), row("", **told)]
    fields = {**COLUMNS, "user": "who", "time": "at", "metadata": "user_consent"}
    governed = run(store, write(tmp_path / "set.parquet", rows), fields=fields)
    assert governed.rejected == {Reason.CONSENT: 1, Reason.EMPTY_OUTPUT: 1}
    found = {each["completion"]: each for each in rows_of(store, governed)}
    assert {text: (each["user_id"], each["day"].day) for text, each in found.items()} == {
        "Yes.": ("u1", 7),
        "Hm.": ("u1", 5),
    }
    assert [message["role"] for message in found["Yes."]["messages"]] == ["system", "user"]


def test_changed_columns_are_read_again(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "set.parquet", [row("Yes.", better="Yes, it is.")])
    run(store, path, consent=True, fields=COLUMNS)
    (found,) = rows_of(store, run(store, path, consent=True, fields={**COLUMNS, "completion": "better"}))
    assert found["completion"] == "Yes, it is."


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("set/a.parquet", {"prompt": "q", "completion": "a"}, "0 of 1 rows admitted.* Rejected: no_content 1"),
        ("set/a.avro", COLUMNS, "holds a.avro, which is none of .jsonl, .ndjson, .json, .csv, .parquet"),
        ("other/a.parquet", COLUMNS, "is not there"),
    ],
)
def test_what_is_no_such_set_is_refused(
    store: Store, tmp_path: Path, name: str, fields: dict[str, Any], words: str
) -> None:
    write(tmp_path / name, [row("Yes.")])
    with pytest.raises(ValueError, match=words):
        run(store, tmp_path / "set", consent=True, fields=fields)


def test_a_set_in_s3_is_read(bucket: str, store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "set.parquet", [row("Yes.")])
    boto3.client("s3").upload_file(str(path), bucket, "labelled-dataset/part-0.parquet")
    assert run(store, f"s3://{bucket}/labelled-dataset", fields=COLUMNS, consent=True).admitted == 1
