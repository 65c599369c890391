"""A mirror that an erasure clears and closes: in a folder and in S3, with past versions, cut uploads and locks."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest

from pipeline.training.checkpoints.manifest import Origin, read
from pipeline.training.checkpoints.mirror import Mirror
from pipeline.training.checkpoints.mirror_removal import CLAIM, MirrorFolder, mark_of, mirror_folder

from .conftest import FILES, PLAN, Run, trained

FOLDER, ITERATION = PLAN[:12], "itr-0123"
ORIGIN = Origin(PLAN, 1, ITERATION)
WAIT_S = 60.0
UNTIL = datetime.now(UTC) + timedelta(days=30)
NOBODY = 65534


def folder_at(uri: str) -> MirrorFolder:
    folder = mirror_folder(uri, FOLDER)
    assert folder is not None
    return folder


@pytest.fixture
def s3(bucket: str) -> Any:
    return boto3.client("s3")


def mirrored(uri: str, folder: Path, *steps: int, **settings: Any) -> None:
    """What a training leaves in the mirror that committed these steps."""
    run = Run(folder, iteration=ITERATION, mirror=uri, **settings)
    for step in steps:
        run.save(step)
        assert run.checkpoints.drain(WAIT_S), run.said


def left(s3: Any, bucket: str) -> set[str]:
    """Names below the training's folder of all that S3 would still hand out, or hides behind a marker."""
    listed = s3.list_object_versions(Bucket=bucket)
    keys = [each["Key"] for kind in ("Versions", "DeleteMarkers") for each in listed.get(kind, ())]
    return {key.partition(f"{FOLDER}/")[2] for key in keys}


def test_a_folder_is_cleared_for_good_and_twice_is_once(tmp_path: Path) -> None:
    mirrored(f"file://{tmp_path}/mirror", tmp_path / "run", 5, 10)
    folder = folder_at(f"file://{tmp_path}/mirror")
    (tmp_path / "mirror" / FOLDER / "torn").write_text("half of a file")
    (tmp_path / "mirror" / FOLDER / "link").symlink_to(tmp_path / "run")
    assert folder.is_begun() and folder.steps() == ["link", "step-000005", "step-000010", "torn"]
    for _ in range(2):
        folder.close(ITERATION)
        assert folder.clear() == []
        there = {path.name for path in (tmp_path / "mirror" / FOLDER).iterdir()}
        assert there == {CLAIM, mark_of(ITERATION)}
    assert (tmp_path / "run" / "checkpoints" / "step-000010").exists(), "a link is not followed"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that every account can enter, as pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="mirror-"))
    folder.chmod(0o755)
    yield folder
    for path in folder.rglob("*"):
        path.chmod(0o755)
    shutil.rmtree(folder)


@contextmanager
def without_rights() -> Generator[None]:
    uid = os.geteuid()
    if uid == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if uid == 0:
            os.seteuid(uid)


def test_what_a_folder_refuses_is_named_with_the_reason(open_folder: Path) -> None:
    step = trained(open_folder / FOLDER / "step-000005", 5)
    step.chmod(0o555)
    with without_rights():
        (line,) = folder_at(str(open_folder)).clear()
    assert line == f"{open_folder}/{FOLDER}/step-000005: Permission denied"
    assert (open_folder / FOLDER).exists()


def test_a_folder_that_cannot_be_listed_is_not_clean(open_folder: Path) -> None:
    trained(open_folder / FOLDER / "step-000005", 5)
    (open_folder / FOLDER).chmod(0o000)
    with without_rights(), pytest.raises(PermissionError):
        folder_at(str(open_folder)).clear()


@pytest.mark.slow
@pytest.mark.parametrize("versioned", [False, True])
def test_a_bucket_is_cleared_with_all_its_versions(tmp_path: Path, bucket: str, s3: Any, versioned: bool) -> None:
    if versioned:
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    mirrored(f"s3://{bucket}/runs", tmp_path, 5, 10, keep_last=1, keep_best=0)
    assert any(name.startswith("step-000005") for name in left(s3, bucket)) is versioned, "hidden by retention"
    s3.put_object(Bucket=bucket, Key="runs/another/step-000005/weights", Body=b"another training's")
    folder = folder_at(f"s3://{bucket}/runs")
    for _ in range(2):
        folder.close(ITERATION)
        assert folder.clear() == [] and folder.steps() == []
        assert left(s3, bucket) == {"", CLAIM, mark_of(ITERATION)}
    assert s3.get_object(Bucket=bucket, Key="runs/another/step-000005/weights")["Body"].read() == b"another training's"
    marks = s3.list_object_versions(Bucket=bucket, Prefix=f"runs/{FOLDER}/{mark_of(ITERATION)}")["Versions"]
    assert len(marks) == 1


def test_uploads_that_were_cut_hold_weights_and_go(bucket: str, s3: Any) -> None:
    key = f"runs/{FOLDER}/step-000005/model.safetensors"
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"half of the weights")
    folder = folder_at(f"s3://{bucket}/runs")
    assert folder.steps() == ["step-000005"]
    assert folder.clear() == []
    assert not s3.list_multipart_uploads(Bucket=bucket).get("Uploads")


@pytest.mark.parametrize(
    ("lock", "reason"),
    [
        ("retention", f"the bucket's object lock keeps them until {UNTIL:%Y-%m-%d} at least"),
        ("hold", "a legal hold is on them: its owner has to take it off"),
    ],
    ids=["retention", "hold"],
)
@pytest.mark.slow
def test_what_a_lock_keeps_stays_hidden_and_is_named(bucket: str, s3: Any, lock: str, reason: str) -> None:
    place = f"{bucket}-locked"
    s3.create_bucket(Bucket=place, ObjectLockEnabledForBucket=True)
    locked = (
        {"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": UNTIL}
        if lock == "retention"
        else {"ObjectLockLegalHoldStatus": "ON"}
    )
    for name in FILES:
        for step, kept in ((5, locked), (10, {})):
            s3.put_object(
                Bucket=place, Key=f"{FOLDER}/step-{step:06d}/{name}", Body=b"w", ChecksumAlgorithm="SHA256", **kept
            )
    s3.delete_object(Bucket=place, Key=f"{FOLDER}/step-000005/{FILES[0]}")
    folder = folder_at(f"s3://{place}")
    for _ in range(2):
        assert folder.clear() == [f"s3://{place}/{FOLDER}/step-000005: 3 versions of its files stay, {reason}"]
        assert folder.steps() == ["step-000005"]
        assert len(s3.list_object_versions(Bucket=place)["DeleteMarkers"]) == 1, "what was hidden stays hidden"


@pytest.mark.slow
def test_a_store_that_does_not_answer_says_what_to_do(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match=r"S3 answers NoSuchBucket to ListObject.*correct the address"):
        folder_at("s3://nowhere-at-all/runs").clear()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:canary-4711@127.0.0.1:9")
    with pytest.raises(OSError, match=r"S3 cannot be reached .*Check AWS_ENDPOINT_URL") as said:
        folder_at(f"s3://{bucket}/runs").steps()
    assert "canary" not in str(said.value)  # it goes into the proof
    assert mirror_folder("gs://bucket/runs", FOLDER) is None


def test_a_training_uploads_no_more_once_it_is_closed(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/mirror"
    run = Run(tmp_path / "run", iteration=ITERATION, mirror=uri)
    run.save(5)
    assert run.checkpoints.drain(WAIT_S) and not run.checkpoints.is_erased
    folder = folder_at(uri)
    folder.close(ITERATION)
    assert folder.clear() == []
    run.save(10)
    run.checkpoints.drain(WAIT_S)
    assert run.checkpoints.is_erased and folder.steps() == []
    assert run.said == [f"an erasure has closed the mirror {uri} to this training: nothing more is uploaded"]
    other = Run(tmp_path / "other", iteration="another-iteration", mirror=uri)  # of the same rows
    other.save(5)
    assert other.checkpoints.drain(WAIT_S) and folder.steps() == ["step-000005"]


@pytest.mark.parametrize("last", range(len(FILES) + 1))
def test_an_upload_in_flight_is_taken_out_again(tmp_path: Path, last: int) -> None:
    uri = f"file://{tmp_path}/mirror"
    saved = Run(tmp_path).save(5)
    folder = folder_at(uri)

    class Closed(Mirror):
        files = 0

        def _put(self, file: Path, path: str, size: int) -> None:
            if self.files == last:  # the erasure looks, and the file that is on its way arrives after that
                folder.close(ITERATION)
                assert folder.clear() == []
            super()._put(file, path, size)
            self.files += 1

    mirror = Closed(uri, ORIGIN, 1)
    assert not mirror.put(saved, read(saved, ORIGIN))
    assert mirror.files == last + 1, "nothing is put after the mark is seen"
    assert folder.steps() == ["step-000005"]
    assert mirror.withdraw() == [] and folder.steps() == []


def test_a_start_heals_what_a_killed_attempt_left(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/mirror"
    folder = folder_at(uri)
    folder.close(ITERATION)
    trained(tmp_path / "mirror" / FOLDER / "step-000005", 5)  # its last upload ended after the erasure looked
    run = Run(tmp_path / "run", iteration=ITERATION, mirror=uri)
    run.save(1)
    run.checkpoints.drain(WAIT_S)
    assert run.checkpoints.is_erased and folder.steps() == []
