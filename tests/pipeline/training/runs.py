"""A training as whole processes, as a launcher starts it: to the end, or killed in the middle and started again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.kills import result_of
from pipeline.core.storage import digest_file
from pipeline.training.journal import read_journal
from pipeline.training.result import TrainingResult

DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""What torch asks for before cuBLAS gives the same bits twice."""
OUTPUT = "output.txt"


class Resumed(NamedTuple):
    """One training undisturbed, and once more with a SIGKILL in it."""

    undisturbed: TrainingResult
    killed: TrainingResult
    adapters: tuple[str, str]
    """Digests of their weights."""

    @property
    def same(self) -> bool:
        return len(set(self.adapters)) == 1 and bool(self.killed.resumed_from)


def train(plan: Path, environment: Mapping[str, str], kill_at: int | None = None) -> TrainingResult:
    """One training. With `kill_at` it dies by SIGKILL after that step, and is started again. Raises RuntimeError with
    the trainer's last output when it fails."""
    if kill_at is not None:
        process = start(plan, environment)
        while process.poll() is None and reached(plan.parent) < kill_at:
            time.sleep(0.02)
        kill(process)
    code = start(plan, environment).wait()
    if code:
        raise failure(plan, code)
    return result_of(plan)


def failure(plan: Path, code: int) -> RuntimeError:
    """What a training that ended with `code` wrote last."""
    output = (plan.parent / OUTPUT).read_text()[-3000:]
    return RuntimeError(f"python -m pipeline.training {plan} ended with {code}:\n{output}")


def start(plan: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """In a session of its own; what it prints goes to a file beside the plan."""
    changed = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", **environment}
    command = [sys.executable, "-m", "pipeline.training", str(plan)]
    with (plan.parent / OUTPUT).open("ab") as output:
        return subprocess.Popen(command, env=changed, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to it and to its ranks: in its session is nobody else."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def reached(folder: Path) -> int:
    """The last step that the journal in `folder` has."""
    return max((event.step for event in read_journal(folder / "journal.jsonl") if event.kind == "step"), default=0)


def resume(write: Callable[[Path], Path], root: Path, steps: int, environment: Mapping[str, str]) -> Resumed:
    """The same training undisturbed, and killed in the middle between two checkpoints. `write`: puts the plan below a
    folder and returns its path; `steps`: that it has."""
    undisturbed = train(write(root / "undisturbed"), environment)
    killed = train(write(root / "killed"), environment, kill_at=steps // 2)
    first, second = (
        digest_file(next(Path(run.checkpoint.adapter.uri).glob("*model.safetensors"))) for run in (undisturbed, killed)
    )
    return Resumed(undisturbed, killed, (first, second))
