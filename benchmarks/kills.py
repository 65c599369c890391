"""The trainer under a schedule of kills, with the imports paid once: a server has imported the trainer and forks a
child for each attempt, which runs what `python -m pipeline.training PLAN` runs."""

import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pipeline.core.locations import Document
from pipeline.core.storage import digest_file
from pipeline.training.result import TrainingResult

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
ENVIRONMENT["DISABLE_MLFLOW_INTEGRATION"] = "TRUE"  # as the entry point sets it, for what is imported here


class Attempt(NamedTuple):
    """How one attempt ended: the signal that it was sent (None: it was left alone) and its exit code."""

    sent: signal.Signals | None
    code: int


class Zygote:
    """Forks trainers. `output` collects what they print."""

    def __init__(self, output: Path) -> None:
        self.output = output
        os.environ.update(ENVIRONMENT)
        self._server = multiprocessing.get_context("forkserver")
        self._server.set_forkserver_preload(["pipeline.training.worker", "pipeline.training.__main__"])

    def attempt(self, plan: Path, sent: signal.Signals | None = None, after_s: float = 0.0) -> Attempt:
        """Run the trainer once; with `sent`, send it that signal after so many seconds, if it still runs."""
        process = self._server.Process(target=_train, args=(str(plan), str(self.output)))
        process.start()
        if sent is not None:
            process.join(after_s)
            if process.exitcode is None:
                assert process.pid is not None, "it has begun"
                os.kill(process.pid, sent)
        process.join()
        assert process.exitcode is not None, "it has ended"
        return Attempt(sent, process.exitcode)


def _train(plan: str, output: str) -> None:
    from pipeline.core.processes import die_with_parent
    from pipeline.training.__main__ import main

    die_with_parent()
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.exit(main(plan))


def survive(
    attempt: Callable[[Path, signal.Signals | None, float], Attempt],
    plan: Path, dice: random.Random, kills: int, whole_s: float,
) -> list[Attempt]:  # fmt: skip
    """Train to the end under `kills` kills at instants that are uniform over `whole_s`, an undisturbed run's time."""
    attempts: list[Attempt] = []
    while not plan.with_name("result.json").exists():
        sent = dice.choice([signal.SIGKILL, signal.SIGTERM]) if len(attempts) < kills else None
        attempts.append(attempt(plan, sent, dice.uniform(0, whole_s)))
        assert attempts[-1].code in (0, 143, -signal.SIGKILL, -signal.SIGTERM), attempts
    return attempts


def result_of(plan: Path) -> TrainingResult:
    path = plan.with_name("result.json")
    return TrainingResult.model_validate_json(path.read_bytes(), context=Document(path))


def adapter_of(plan: Path) -> str:
    return digest_file(plan.parent / "adapter" / "adapter_model.safetensors")
