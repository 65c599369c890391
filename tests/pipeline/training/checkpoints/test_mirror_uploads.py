"""Uploads beside the training, on a mirror that takes a file when the test lets it."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from pipeline.training.checkpoints.manifest import MANIFEST

from .conftest import FILES, PLAN, Run, is_whole

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
