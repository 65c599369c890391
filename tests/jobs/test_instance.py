"""A run carries its recipe, whoever takes it; a launch that is in another run's way, or cannot go well, makes none."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path

import dagster as dg
import psutil
import pytest

from jobs.instance import RecipeInstance
from jobs.run_contents import RECIPE_TAG
from jobs.workers import DATA_ROOT_TAG
from pipeline.recipe import load
from pipeline.storage import digest_json
from tests.iterations import Iterations
from tests.loop import EMBEDDED, ROOT, SHORT, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BIN = Path(sys.executable).parent
LAUNCH = [str(BIN / "dagster"), "job", "launch", "-j", "preference_tuning", "-m", "jobs.definitions"]
DEADLINE_S = 180


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    for name in ("dagster.yaml", ".env"):
        shutil.copy(ROOT / name, root / name)
    return root


@contextmanager
def running(folder: Path, command: list[str], root: Path, *overrides: str, **variables: str) -> Iterator[psutil.Popen]:
    """The command, typed in `folder`; it is interrupted at the end of the block if it still runs."""
    with (folder.parent / f"{time.monotonic_ns()}.txt").open("w+") as output:
        process = psutil.Popen(
            command,
            cwd=folder,
            env={**environment(folder, root, overrides), **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        process.output = lambda: Path(output.name).read_text()
        try:
            yield process
        finally:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
            process.wait(DEADLINE_S)


def ended(process: psutil.Popen) -> int:
    return process.wait(DEADLINE_S)


def wait_for(process: psutil.Popen, text: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while text not in process.output():
        assert time.monotonic() < deadline, process.output()
        assert process.poll() is None or text in process.output(), process.output()
        time.sleep(0.1)


def served(iterations: Iterations, root: Path) -> Path:
    """A data root whose base model has served its days."""
    shutil.copytree(iterations.first(root.with_name(f"{root.name}-first")) / "production", root / "production")
    return root


def runs(folder: Path) -> list[dg.DagsterRun]:
    with chdir(folder), dg.DagsterInstance.from_config(str(folder)) as instance:
        assert isinstance(instance, RecipeInstance)
        return instance.get_runs()


def test_a_mistake_in_the_recipe_makes_no_run(folder: Path, tmp_path: Path) -> None:
    with running(folder, LAUNCH, tmp_path / "data", "training.grpo.stepz=1") as launch:
        assert ended(launch) == 1
        assert "training.grpo.stepz" in launch.output()
        assert "Traceback" not in launch.output()
        assert "code server" not in launch.output(), "the recipe is read before any code is loaded"
    assert runs(folder) == []


@pytest.mark.variant
def test_a_suite_that_cannot_be_read_makes_no_run(folder: Path, tmp_path: Path) -> None:
    mine = 'evaluation.suites=[{"kind":"jsonl","name":"mine","path":"mine.jsonl","check":"math"}]'
    with running(folder, LAUNCH, tmp_path / "data", mine, "accept_demo_suite=true") as launch:
        assert ended(launch) == 1
        assert "suite mine: The suite mine is not at" in launch.output()
        assert "Nothing was launched" in launch.output()
    assert runs(folder) == []


@pytest.mark.variant
def test_launch_refuses_another_recipe_and_allows_another_root(
    folder: Path, iterations: Iterations, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", served(iterations, tmp_path / "second")
    with running(folder, LAUNCH, first) as at_work:
        wait_for(at_work, " started")
        (run,) = runs(folder)
        assert run.tags[DATA_ROOT_TAG] == str(first)
        assert run.tags[RECIPE_TAG] == digest_json(load(EMBEDDED, [*SHORT, f"data_root={first}"]))[:12]
        config = run.run_config["resources"]["deployment"]["config"]
        assert load(config["recipe_path"], config["overrides"]).data_root == str(first)

        with running(folder, LAUNCH, first, "training.seed=9") as other:
            assert ended(other) == 1
            assert f"Error: Run {run.run_id} of preference_tuning is at work on {first}" in other.output()
        with running(folder, [*LAUNCH, "-o", "traces"], first) as other:
            assert ended(other) == 1
            assert "asks for recipe" in other.output()
        assert len(runs(folder)) == 1, "a launch that is refused makes no run"
        with running(folder, [*LAUNCH, "-o", "traces"], second) as beside:
            assert ended(beside) == 0, beside.output()
        assert (second / "iterations" / "latest.json").is_file()


@pytest.mark.variant
def test_a_daemon_runs_the_recipe_of_the_caller(folder: Path, iterations: Iterations, tmp_path: Path) -> None:
    of_daemon, of_caller = tmp_path / "daemon", served(iterations, tmp_path / "caller")
    assert runs(folder) == []  # its databases exist: Dagster's SQLite files may not be begun by two processes at once
    with running(folder, [str(BIN / "dagster-daemon"), "run", "-m", "jobs.definitions"], of_daemon):
        deadline = time.monotonic() + DEADLINE_S
        with chdir(folder), dg.DagsterInstance.from_config(str(folder)) as instance:
            while "QUEUED_RUN_COORDINATOR" not in instance.get_daemon_heartbeats():
                assert time.monotonic() < deadline
                time.sleep(0.2)
        with running(folder, [*LAUNCH, "-o", "traces"], of_caller) as launch:
            assert ended(launch) == 0, launch.output()
            assert "queued for the daemon" in launch.output()
    assert (of_caller / "iterations" / "latest.json").is_file()
    assert not of_daemon.exists()


def test_a_stage_of_another_recipe_is_refused_before_a_run(
    folder: Path, iterations: Iterations, tmp_path: Path
) -> None:
    root = iterations.first(tmp_path / "first") / "data"
    with running(folder, [*LAUNCH, "-o", "reward_labels*"], root, "training.seed=9") as mixed:
        assert ended(mixed) == 1
        assert "was begun with another recipe (training.seed: 1, now 9)" in mixed.output()
        assert "Traceback" not in mixed.output()
    assert runs(folder) == []
