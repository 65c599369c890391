"""The local launcher: the trainer as a child process. `result.json` and the exit code decide, lines are for people."""

import os
import signal
import sys
from collections.abc import Callable
from threading import Timer

from pipeline.core import layout
from pipeline.core.processes import Child
from pipeline.core.storage import Store
from pipeline.serving.endpoint import Endpoint
from pipeline.training.journal import PREFIX
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import BLOCKED, BLOCKED_WORDS, NEVER_RETRY, PREEMPTED, TrainingResult


class TrainingRefused(ValueError):
    """The trainer will never run this plan (exit 64 or 65); the message says what to change. A retry cannot help."""


def train(
    store: Store, plan: TrainingPlan, timeout_s: float, log: Callable[[str], None], judge: Endpoint | None = None
) -> TrainingResult | None:
    """Train a published plan to its end, resuming what earlier attempts left; None when the plan is not to train.
    `judge`: where the judge listens that scores completions, for a plan that asks one; None: as the environment says.
    Raises TrainingRefused, or RuntimeError for a pre-emption or a crash that a retry may get past."""
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
    variables = {"JUDGE_URL": judge.url, "JUDGE_API_KEY": judge.api_key} if judge is not None else {}
    with Child(command, plan.training.grace_s, environment=variables) as child:  # a cancelled step saves a checkpoint
        watchdog = Timer(timeout_s, child.end)
        watchdog.daemon = True
        watchdog.start()
        try:
            for line in child.lines():
                if line.startswith(PREFIX):
                    log(line.rstrip())
            code = child.wait()
        finally:
            watchdog.cancel()
    tail = "\n".join(child.tail)
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
