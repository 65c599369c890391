"""The trainer under a schedule of kills, with the imports paid once: `Zygote` has imported the trainer and forks a
child for each attempt, which runs what `python -m pipeline.training PLAN` runs."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from pipeline.core.locations import Document
from pipeline.core.storage import digest_file
from pipeline.training.result import TrainingResult


class Attempt(NamedTuple):
    """How one attempt ended: the signal that it was sent (None: it was left alone) and its exit code."""

    sent: signal.Signals | None
    code: int


class Zygote:
    """Forks trainers. `output` collects what they print."""

    def __init__(self, output: Path) -> None:
        output.parent.mkdir(parents=True, exist_ok=True)
        self.output, self._before = output, 0
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        environment["DISABLE_MLFLOW_INTEGRATION"] = "TRUE"  # as the entry point sets it, for what is imported here
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.kills", str(output)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def attempt(self, plan: Path, sent: signal.Signals | None = None, after_s: float = 0.0, at: str = "") -> Attempt:
        """Run the trainer once; with `sent`, send it that signal, if it still runs.

        That is once it has printed `at`, and so many seconds have passed.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._before = self.output.stat().st_size if self.output.exists() else 0
        self._process.stdin.write(f"{plan}\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        if sent is not None:
            self._signal(pid, sent, after_s, at)
        return Attempt(sent, int(self._process.stdout.readline()))

    def said(self) -> str:
        """What the newest attempt has printed, up to now."""
        return self.output.read_bytes()[self._before :].decode(errors="replace") if self.output.exists() else ""

    def _signal(self, pid: int, sent: signal.Signals, after_s: float, at: str) -> None:
        """The child is reaped by the zygote only after it is told to look: until then the pid is the child's."""
        until = time.monotonic() + after_s
        while _runs(pid) and (time.monotonic() < until or at not in self.said()):
            time.sleep(0.01)
        if _runs(pid):
            os.kill(pid, sent)


def survive(zygote: Zygote, plan: Path, dice: random.Random, kills: int, whole_s: float) -> list[Attempt]:
    """Train to the end under `kills` kills at instants that are uniform over `whole_s`, an undisturbed run's time."""
    attempts: list[Attempt] = []
    while not plan.with_name("result.json").exists():
        sent = dice.choice([signal.SIGKILL, signal.SIGTERM]) if len(attempts) < kills else None
        attempts.append(zygote.attempt(plan, sent, dice.uniform(0, whole_s)))
        assert attempts[-1].code in (0, 143, -signal.SIGKILL, -signal.SIGTERM), (attempts, zygote.output.read_bytes())
    return attempts


def result_of(plan: Path) -> TrainingResult:
    path = plan.with_name("result.json")
    return TrainingResult.model_validate_json(path.read_bytes(), context=Document(path))


def adapter_of(plan: Path) -> str:
    return digest_file(plan.parent / "adapter" / "adapter_model.safetensors")


def _runs(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _serve(output: str) -> None:
    from pipeline.core.processes import die_with_parent
    from pipeline.training import worker
    from pipeline.training.__main__ import main

    die_with_parent()
    assert worker is not None, "imported for its imports"
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            die_with_parent()
            descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            code = 1
            try:
                code = main(line.strip())
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else 1
            except BaseException:  # the boundary of the child: what ends it is its output's last words
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
