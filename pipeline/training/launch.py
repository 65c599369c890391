"""The local launcher: runs the trainer as a subprocess, follows its progress, reads its result.

`result.json` decides, with the exit codes of `result.py`; output lines are only for people.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from threading import Timer

from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.serving.endpoint import Endpoint
from pipeline.training.plan import TrainingPlan
from pipeline.training.progress import PREFIX
from pipeline.training.result import BLOCKED, BLOCKED_WORDS, NEVER_RETRY, PREEMPTED, TrainingResult


class TrainingRefused(ValueError):
    """The trainer will never run this plan (exit 64 or 65); the message says what to change. A retry cannot help."""


def train(
    store: Store, plan: TrainingPlan, timeout_s: float, log: Callable[[str], None], judge: Endpoint | None = None
) -> TrainingResult | None:
    """Train a published plan to its end, resuming what earlier attempts left; None when the plan is not to train.

    `judge`: where the judge listens that scores completions, for a plan that asks one; None: as the environment says.
    Raises TrainingRefused, or RuntimeError for a pre-emption or a crash that a retry may get past.
    """
    if plan.decision.method == "none":
        return None
    if plan.nodes > 1:
        raise TrainingRefused(
            f"The plan has {plan.nodes} nodes, and this launcher starts one. Set compute.nodes to 1, or give the "
            "recipe a compute.kubernetes section."
        )
    name = layout.iteration(plan.iteration)
    existing = store.read(f"{name}/{layout.RESULT}", TrainingResult)
    if existing is not None:
        return existing
    command = [sys.executable, "-m", "pipeline.training", str(store.path(name, layout.PLAN))]
    command += ["--parent", str(os.getpid())]
    code, tail = _follow(command, timeout_s, plan.training.grace_s, log, judge)
    if code == BLOCKED:
        raise TrainingRefused(f"The training was blocked: {BLOCKED_WORDS}")
    if code == NEVER_RETRY:
        raise TrainingRefused(f"The trainer refuses the plan:\n{tail}")
    result = store.read(f"{name}/{layout.RESULT}", TrainingResult)
    if result is not None:  # also when the signal came after the work was done
        return result
    if code in (PREEMPTED, -signal.SIGTERM):
        raise RuntimeError("Training was pre-empted after a checkpoint. Run it again: it resumes there.")
    raise RuntimeError(f"Training ended with exit code {code}. Run it again to resume. Its last lines:\n{tail}")


def _follow(
    command: list[str], timeout_s: float, grace_s: float, log: Callable[[str], None], judge: Endpoint | None
) -> tuple[int, str]:
    """Run to the end, passing on the lines that the trainer marks; returns the exit code and the last lines."""
    tail: list[str] = []
    variables = {**os.environ, "JUDGE_URL": judge.url, "JUDGE_API_KEY": judge.api_key} if judge is not None else None
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables
    ) as process:
        assert process.stdout is not None
        watchdog = Timer(timeout_s, process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            for line in process.stdout:
                tail = [*tail[-29:], line.rstrip()]
                if line.startswith(PREFIX):
                    log(line.rstrip())
            return process.wait(), "\n".join(tail)
        except BaseException:  # a cancelled step ends its trainer: first politely, for a last checkpoint
            process.terminate()
            try:
                process.wait(timeout=grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
        finally:
            watchdog.cancel()
