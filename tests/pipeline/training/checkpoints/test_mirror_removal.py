"""A mirror that an erasure clears and closes: in a folder and in S3."""

import errno
from pathlib import Path
from typing import Any

import boto3
import pytest
from fsspec.implementations.local import LocalFileSystem

from pipeline.training.checkpoints.manifest import Origin
from pipeline.training.checkpoints.mirror import CLAIM, MirrorFolder, mark_of, mirror_folder

from .conftest import PLAN, Run, trained

FOLDER, ITERATION = PLAN[:12], "itr-0123"
ORIGIN = Origin(PLAN, 1, ITERATION)
WAIT_S = 60.0


def folder_at(uri: str) -> MirrorFolder:
    folder = mirror_folder(uri, FOLDER)
    assert folder is not None
    return folder


def test_a_folder_is_cleared_for_good_and_twice_is_once(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", iteration=ITERATION, mirror=f"file://{tmp_path}/mirror")
    for step in (5, 10):
        run.save(step)
        assert run.checkpoints.uploads.drain(WAIT_S), run.said
    folder = folder_at(f"file://{tmp_path}/mirror")
    (tmp_path / "mirror" / FOLDER / "torn").write_text("half of a file")
    assert folder.is_begun() and folder.steps() == ["step-000005", "step-000010", "torn"]
    for _ in range(2):
        folder.close(ITERATION)
        assert folder.clear() == []
        there = {path.name for path in (tmp_path / "mirror" / FOLDER).iterdir()}
        assert there == {CLAIM, mark_of(ITERATION)}


def test_what_a_folder_refuses_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = trained(tmp_path / FOLDER / "step-000005", 5)

    def refuses(self: LocalFileSystem, path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(LocalFileSystem, "rm_file", refuses)
    assert folder_at(str(tmp_path)).clear() == [f"{step}: Permission denied"]


@pytest.mark.slow
@pytest.mark.parametrize("versioned", [False, True])
def test_a_bucket_is_cleared_and_its_versions_are_named(tmp_path: Path, bucket: str, versioned: bool) -> None:
    s3: Any = boto3.client("s3")
    if versioned:
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    run = Run(tmp_path, iteration=ITERATION, mirror=f"s3://{bucket}/runs")
    run.save(5)
    assert run.checkpoints.uploads.drain(WAIT_S), run.said
    s3.put_object(Bucket=bucket, Key="runs/another/step-000005/weights", Body=b"another training's")
    folder = folder_at(f"s3://{bucket}/runs")
    assert folder.is_begun() and folder.steps() == ["step-000005"]
    for _ in range(2):
        folder.close(ITERATION)
        lines = folder.clear()
        assert len(lines) == versioned and all("the bucket keeps versions" in line for line in lines)
    keys = {each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]}
    own = {f"runs/{FOLDER}/{CLAIM}", f"runs/{FOLDER}/{mark_of(ITERATION)}"}
    assert keys == {*own, "runs/another/step-000005/weights"}


@pytest.mark.slow
def test_a_store_that_does_not_answer_says_what_to_do(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:canary-4711@127.0.0.1:9")
    with pytest.raises(OSError, match=r"cannot be reached: ") as said:
        folder_at(f"s3://{bucket}/runs").steps()
    assert "canary" not in str(said.value)  # it goes into the proof
    assert mirror_folder("carrier-pigeon://loft", FOLDER) is None


def test_a_training_uploads_no_more_once_it_is_closed(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/mirror"
    run = Run(tmp_path / "run", iteration=ITERATION, mirror=uri)
    run.save(5)
    assert run.checkpoints.uploads.drain(WAIT_S) and not run.checkpoints.is_erased
    folder = folder_at(uri)
    folder.close(ITERATION)
    assert folder.clear() == []
    run.save(10)
    run.checkpoints.uploads.drain(WAIT_S)
    assert run.checkpoints.is_erased and folder.steps() == []
    assert run.said == [f"an erasure has closed the mirror {uri} to this training: nothing more is uploaded"]
    other = Run(tmp_path / "other", iteration="another-iteration", mirror=uri)  # of the same rows
    other.save(5)
    assert other.checkpoints.uploads.drain(WAIT_S) and folder.steps() == ["step-000005"]


def test_an_upload_in_flight_is_taken_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, put = f"file://{tmp_path}/mirror", LocalFileSystem.put_file
    folder = folder_at(uri)

    def closed(self: LocalFileSystem, *args: object, **options: object) -> None:
        if folder.steps() == []:  # the erasure looks, and the files that are on their way arrive after that
            folder.close(ITERATION)
            assert folder.clear() == []
        put(self, *args, **options)

    monkeypatch.setattr(LocalFileSystem, "put_file", closed)
    run = Run(tmp_path / "run", iteration=ITERATION, mirror=uri)
    run.save(5)
    run.checkpoints.uploads.drain(WAIT_S)
    assert run.checkpoints.is_erased and folder.steps() == []


def test_a_start_heals_what_a_killed_attempt_left(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/mirror"
    folder = folder_at(uri)
    folder.close(ITERATION)
    trained(tmp_path / "mirror" / FOLDER / "step-000005", 5)  # its last upload ended after the erasure looked
    run = Run(tmp_path / "run", iteration=ITERATION, mirror=uri)
    run.save(1)
    run.checkpoints.uploads.drain(WAIT_S)
    assert run.checkpoints.is_erased and folder.steps() == []
