"""An erasure that dies at the end of a phase, or at any write, and is typed again."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from pipeline.core import audit
from pipeline.governance.erasure.proof import ErasureProof
from pipeline.traces.lake import Lake
from pipeline.traces.records import Reason
from tests.killing import differing
from tests.pipeline.governance.erasure import forget_work
from tests.pipeline.governance.erasure.conftest import ANN, DAYS, World
from tests.pipeline.governance.erasure.crashes import crashed_at_every_write
from tests.pipeline.governance.erasure.looking import erase, holding, words_of
from tests.variants import one_and_variants

KILLED = """
    import os, signal, sys
    from datetime import datetime, UTC
    from pathlib import Path
    from pipeline.governance.erasure import forget
    from pipeline.governance.erasure.owner import Person
    from tests.contexts import stage_context
    from tests.pipeline.governance.erasure.conftest import ANN, NAME, NOW, Place

    place, left = Place(Path(sys.argv[1])), int(sys.argv[2])

    def log(line):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    context = stage_context(place.store, place.lake, log, name=NAME)
    forget(context, Person.named(ANN), registry_uri=place.tracking_uri, now=NOW)
"""


@pytest.mark.slow
@pytest.mark.parametrize("phase", one_and_variants([1, 3, 5, 7, 9]))
def test_a_kill_at_a_phases_end_is_healed_by_the_same_command(phase: int, world: World) -> None:
    root = world.place.root
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(root), str(phase)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    check_healed(world, erase(world.place))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.variant), 61])
def test_an_erasure_killed_at_its_writes_ends_the_same(every: int, _made: tuple[World, Path], tmp_path: Path) -> None:
    """At every file that is opened to be written, made, renamed or removed, and around every commit of a database."""
    kills, wrong = differing(forget_work.__name__, _made[1], tmp_path, every)
    assert kills > (300 if every == 1 else 4) and wrong == []


def check_healed(world: World, proof: ErasureProof) -> None:
    assert holding(world.place.root, *words_of(ANN)) == set()
    assert proof.rows == {DAYS[0]: 6, DAYS[1]: 6}
    assert proof.affected.iterations == tuple(sorted({world.first.id, world.third.id}))
    assert proof.affected.versions == ("demo version 1", "demo version 3")
    assert proof.affected.undetermined == ()
    for report in world.place.reports().values():
        lines = world.place.store.path(f"traces/rejected/{report.day}.jsonl").read_text().splitlines()
        assert len(lines) == sum(report.rejected.values())
    assert sum(r.rejected.get(Reason.ERASED, 0) for r in world.place.reports().values()) == 12
    assert [e.kind for e in audit.entries(world.place.store)] == ["erasure"]
    assert not world.place.store.path("erasures", "pending", f"{proof.id}.json").exists()
    assert "blocked" in world.place.propose(world.first)


STEPS: tuple[tuple[Any, str], ...] = (
    (Path, "replace"),
    (Path, "unlink"),
    (shutil, "rmtree"),
    (Lake, "erase"),
    (Lake, "expire"),
    (Lake, "sweep"),
    (MlflowClient, "set_model_version_tag"),
)


@pytest.mark.variant
@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_write_is_healed(after: bool, world: World) -> None:
    """One attempt after the other, each of which dies one write later than the one before."""
    crashes = crashed_at_every_write(lambda: erase(world.place), STEPS, after)
    assert crashes > 20
    check_healed(world, erase(world.place))
