"""A mirror that an erasure clears and closes: in a folder and in S3. And what a training uploads."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from pipeline.training.checkpoints.manifest import MANIFEST, Origin
from pipeline.training.checkpoints.mirror import CLAIM, MirrorFolder, mark_of, mirror_folder

from .conftest import FILES, PLAN, Run, is_whole, trained

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


TIMEOUT_S = 60.0


class Gated(LocalFileSystem):
    """Each file that is put waits for the gate; one of `faults` is raised instead, until they run out."""

    protocol = "gated"
    # fsspec makes the instance, so the tests speak to the class.
    gate = threading.Event()
    reached = threading.Event()
    faults: Iterator[Exception | None] = iter(())
    sent: list[str] = []  # noqa: RUF012

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        self.reached.set()
        assert self.gate.wait(TIMEOUT_S)
        if fault := next(self.faults, None):
            raise fault
        super().put_file(lpath, rpath, **options)
        self.sent.append(rpath)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix("gated://"))


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[type[Gated]]:
    fsspec.register_implementation("gated", Gated, clobber=True)
    Gated.gate.set()
    Gated.reached.clear()
    Gated.faults = iter(())
    Gated.sent.clear()
    yield Gated
    Gated.gate.set()


@pytest.fixture
def run(tmp_path: Path, gated: type[Gated]) -> Run:
    return Run(tmp_path, mirror=f"gated://{tmp_path}/mirror", keep_last=1, keep_best=0)


def mirrored(run: Run) -> list[str]:
    return sorted(path.name for path in (run.folder / "mirror" / PLAN[:12]).glob("step-*"))


def test_a_step_does_not_wait_and_the_newest_wins(run: Run, gated: type[Gated]) -> None:
    gated.gate.clear()
    run.save(1)
    assert gated.reached.wait(TIMEOUT_S)
    for step in (2, 3, 4):
        run.save(step)
    assert run.there() == ["step-000001", "step-000004"]  # one in flight, one that waits and is the last
    assert not run.checkpoints.uploads.drain(0.01)
    gated.gate.set()
    assert run.checkpoints.uploads.drain(TIMEOUT_S)
    assert mirrored(run) == ["step-000004"]
    assert is_whole(run.folder / "mirror" / PLAN[:12] / "step-000004")
    run.save(5)
    assert run.there() == ["step-000005"]


def test_the_manifest_goes_up_last(run: Run, gated: type[Gated], tmp_path: Path) -> None:
    run.save(1)
    assert run.checkpoints.uploads.drain(TIMEOUT_S)
    own = [path for path in gated.sent if str(tmp_path) in path]  # an upload of the test before may end only now
    names = [path.partition("step-000001/")[2] for path in own]
    assert sorted(names[:-1]) == sorted(FILES)
    assert names[-1] == MANIFEST


@pytest.mark.parametrize("file", [0, len(FILES)])
def test_failed_upload_is_reported_once_and_tried_again(run: Run, gated: type[Gated], file: int) -> None:
    gated.gate.clear()
    run.save(1)
    assert gated.reached.wait(TIMEOUT_S)
    gated.faults = iter([*[None] * file, ConnectionResetError("hung up")])
    run.save(2)
    gated.gate.set()
    assert run.checkpoints.uploads.drain(TIMEOUT_S)
    (said,) = run.said
    assert said.startswith("checkpoint step-000001 is not in the mirror, and the next one tries again: Connection")
    assert mirrored(run) == ["step-000002"]


def test_closed_uploads_take_no_more(run: Run) -> None:
    run.save(1)
    assert run.checkpoints.uploads.drain(TIMEOUT_S)
    run.checkpoints.close()
    run.save(2)
    assert not run.checkpoints.uploads.drain(TIMEOUT_S)
    assert mirrored(run) == ["step-000001"]
