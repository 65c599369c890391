import hashlib
import os
from itertools import repeat
from pathlib import Path

import boto3
import pytest

from pipeline.core import objects
from pipeline.core.storage import digest_file
from pipeline.traces.rows import Rows
from pipeline.traces.sources.files import Files
from pipeline.traces.sources.langfuse_export import LangfuseExport
from tests.variants import one_and_variants

from ....servers import unsteady
from .conftest import all_of, observation, read, write

pytestmark = pytest.mark.slow
DAY = "observations_v2/2026-01-05.jsonl.gz"


def put(bucket: str, path: Path, name: str = DAY) -> None:
    boto3.client("s3").upload_file(str(path), bucket, f"prefix/{name}")


def source(bucket: str) -> LangfuseExport:
    return LangfuseExport(f"s3://{bucket}/prefix")


def test_an_export_in_s3_is_read_as_it_is_now(bucket: str, export: Path) -> None:
    opened = source(bucket)
    for day in ("2026-01-05", "2026-01-06"):
        path = write(export, f"observations_v2/{day}.jsonl.gz", [observation(1)])
        put(bucket, path, f"observations_v2/{day}.jsonl.gz")
        part = opened.parts()[-1]
        assert part.name == f"observations_v2/{day}.jsonl.gz"  # a cached listing would miss the second
        digest = hashlib.sha256()
        assert len(all_of(opened.rows(part, digest)).traces) == 1
        assert digest.hexdigest() == digest_file(path)
        assert part.version == hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match=r"\.$"):
        LangfuseExport("s3://no-such-bucket/prefix").parts()


@pytest.mark.situation("07-s3-folder-objects", "right")
def test_folder_objects_and_hidden_folders_are_no_files(bucket: str) -> None:
    of_tools = ["_temporary/0/x.jsonl", "_delta_log/1.json", "days/.ipynb_checkpoints/x.jsonl", "_SUCCESS"]
    for name in ("", "days/", "days_$folder$", *of_tools, "days/1 %2F#?.jsonl"):
        body = b"{}\n" if name.endswith(("json", "jsonl")) else b""
        boto3.client("s3").put_object(Bucket=bucket, Key=f"prefix/{name}", Body=body)
    assert [part.name for part in Files(f"s3://{bucket}/prefix").parts()] == ["days/1 %2F#?.jsonl"]
    boto3.client("s3").put_object(Bucket=bucket, Key="prefix/days/", Body=b"not empty, so it is somebody's")
    with pytest.raises(ValueError, match="holds days/, which is none of"):
        Files(f"s3://{bucket}/prefix").parts()


@pytest.mark.parametrize("faults", one_and_variants([["", "cut", "cut"], ["500", "", "500"], ["", "slow"]]))
def test_store_that_fails_now_and_then_gives_each_row_once(
    bucket: str, s3_endpoint: str, export: Path, faults: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(export, DAY, [observation(n, output=os.urandom(20_000).hex()) for n in range(1, 601)])
    put(bucket, path)
    monkeypatch.setattr(objects, "PATIENT", (8, 1.0))
    left = iter(faults)
    with unsteady(s3_endpoint, left) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        opened, digest, rows = source(bucket), hashlib.sha256(), Rows()
        for part in opened.parts():
            rows = all_of(opened.rows(part, digest))
    assert next(left, None) is None
    assert [t.line for t in rows.traces] == list(range(1, 601))
    assert rows.rejected == []
    assert digest.hexdigest() == digest_file(path)


def test_a_store_that_stays_away_is_no_empty_source(
    bucket: str, s3_endpoint: str, export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, write(export, DAY, [observation(1)]))
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    part = source(bucket).parts()[0]
    with unsteady(s3_endpoint, repeat("500")) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(ValueError, match=r"InternalError.* try again later\.$"):
            source(bucket).parts()
        with pytest.raises(ValueError, match=r"InternalError.* try again later\.$"):
            read(source(bucket), part)
