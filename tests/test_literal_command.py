"""`dagster job launch -j preference_tuning` as it is typed: a SIGKILL of its trainer changes no bit of the adapter.

Its environment has a planted secret in every variable that may hold one, and none of them is found anywhere later.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from assets.records import CHECKPOINT
from pipeline.training.result import TrainingResult
from tests.iterations import Iterations
from tests.loop import ROOT, adapter_digest, deployment, environment
from tests.planted import MARK, arguments_with_a_secret, files_with_a_secret, planted
from tests.processes import below

DAGSTER = str(Path(sys.executable).parent / "dagster")
COMMAND = [DAGSTER, "job", "launch", "-j", "preference_tuning", "-m", "jobs.definitions"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stand-in for the repository's root: the instance files, and nothing else that could be littered."""
    root = tmp_path / "root"
    root.mkdir()
    root.with_name("home").mkdir()
    for name in ("dagster.yaml", ".env"):
        shutil.copy(ROOT / name, root / name)
    return root


def launch(folder: Path, at: str, act: Callable[[int], None] | None) -> tuple[int, list[str]]:
    """Type the command; when a line with `at` comes, do `act` to the command's process. Returns exit code and lines."""
    lines: list[str] = []
    with subprocess.Popen(
        COMMAND,
        cwd=folder,
        env={**environment(folder, folder / "data"), **planted(), "HOME": str(folder.with_name("home"))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as command:
        assert command.stdout is not None
        for line in command.stdout:
            lines.append(line.rstrip())
            if act is not None and at in line:
                act(command.pid)
                act = None
        return command.wait(), lines


def kill(words: list[str]) -> Callable[[int], None]:
    """Kills the one process below the command whose command line holds all the words, with SIGKILL."""

    def act(command: int) -> None:
        matches = below(command, *words)
        assert matches, words
        matches[0].send_signal(signal.SIGKILL)

    return act


def killed_once(folder: Path, undisturbed: Path) -> list[str]:
    """Launch with the trainer killed on the way, and compare the adapter with that of the same iteration in the data
    root `undisturbed`; what the command printed."""
    code, printed = launch(folder, at="step 5/6", act=kill(["-m", "pipeline.training"]))
    assert code == 0, printed
    assert any("resuming at step-000004" in line for line in printed)  # the step, retried by itself
    for words in (("traces", "started"), ("policy_checkpoint", "started"), ("canary", "done")):
        assert any(all(word in line for word in words) for line in printed)
    settings, expected = deployment(folder / "data"), deployment(undisturbed).latest()
    iteration = settings.latest().id
    assert adapter_digest(folder / "data", iteration) == adapter_digest(undisturbed, expected.id)
    result: TrainingResult = CHECKPOINT.read(settings.store(), iteration)
    assert result.resumed_from == (4,)
    return printed


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a process for each stage
def test_a_killed_trainer_changes_nothing(folder: Path, iterations: Iterations, tmp_path: Path) -> None:
    first = iterations.first(tmp_path / "first")
    shutil.copytree(first / "production", folder / "data" / "production")  # as the first model has served its days
    with arguments_with_a_secret() as arguments:
        printed = killed_once(folder, first / "data")
    assert arguments == set()
    assert [line for line in printed if MARK in line] == []
    assert files_with_a_secret(folder) == []
    assert {p.name for p in folder.iterdir()} == {"dagster.yaml", ".env", ".dagster", "data"}
    assert list(folder.with_name("home").iterdir()) == []
