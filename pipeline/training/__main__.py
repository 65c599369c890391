"""The entry point of training. Exit codes: 0 a verified `result.json`; 143 run me again; 64 and 65 never retry (a wrong
plan; an erasure); anything else is a crash."""

import argparse
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from pipeline.core import layout
from pipeline.core.locations import Document
from pipeline.core.processes import die_with_parent
from pipeline.core.redaction import guard_output
from pipeline.core.storage import digest_dir, digest_file
from pipeline.training.checkpoints.claims import Superseded, WriterLocked, only_writer
from pipeline.training.journal import emit
from pipeline.training.nemo.limits import CHECKOUT
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import (
    BLOCKED,
    BLOCKED_WORDS,
    NEVER_RETRY,
    PREEMPTED,
    InvalidPlan,
    TrainingBlocked,
    TrainingResult,
)

MAX_RESTARTS = 2
"""Of a node's processes after a crash of one, before the launcher hears of it."""


def main(plan_path: str, node_rank: int = 0, master: str = "", nemo_rl: str = CHECKOUT, attempt: int = 0) -> int:
    """Train and return the exit code. `master`: host:port of node 0, where the plan has several nodes. `attempt`: by
    the launcher's count; a later one, or a later start of the same one, supersedes this one."""
    started_at, path = time.time(), Path(plan_path).absolute()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(PREEMPTED))  # nothing is lost yet
    os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    os.environ["DISABLE_MLFLOW_INTEGRATION"] = "TRUE"  # TRL would import all of MLflow, to report nothing to it
    if (path.parent / layout.BLOCKED_FILE).exists():
        print(f"{path}: {BLOCKED_WORDS}", file=sys.stderr)
        return BLOCKED
    try:
        plan = TrainingPlan.model_validate_json(path.read_bytes(), context=Document(path))
        verify_inputs(plan)
    except (FileNotFoundError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return NEVER_RETRY
    try:
        if "RANK" not in os.environ and finished(plan, path.parent, mend=node_rank == 0):
            emit("finished before: its result stands")
            return 0
        if plan.training.engine == "nemo_rl":
            from jinja2 import TemplateError

            from pipeline.training.account import write_result
            from pipeline.training.nemo.run import run

            with only_writer(path.parent, attempt) as claim:
                try:
                    result = run(plan, path.parent, Path(nemo_rl), emit, fence=claim.check)
                except (TemplateError, ValueError) as error:
                    raise InvalidPlan(f"{type(error).__name__}: {error}") from error
                claim.check()
                write_result(path.parent, result)
            return 0
        os.environ["OMP_NUM_THREADS"] = str(plan.training.threads)  # before torch is imported
        from pipeline.training.distribution import WORKER, needs_gang, run_gang

        if needs_gang(plan) and "RANK" not in os.environ:
            command = (*WORKER, "--parent", str(os.getpid()), "--attempt", str(attempt))
            return run_gang(path, plan, max_restarts=MAX_RESTARTS, node_rank=node_rank, master=master, command=command)
        from pipeline.training.worker import work

        work(plan, path.parent, started_at, attempt)
    except (InvalidPlan, TrainingBlocked, Superseded, WriterLocked) as error:
        print(error, file=sys.stderr)
        if isinstance(error, WriterLocked):
            return PREEMPTED if attempt else 1  # no crash: the lock of a node that died is given back in time
        return {InvalidPlan: NEVER_RETRY, TrainingBlocked: BLOCKED, Superseded: PREEMPTED}[type(error)]
    return 0


def finished(plan: TrainingPlan, folder: Path, mend: bool = True) -> bool:
    """Whether `result.json` is of this plan and its weights are there to the bit; `mend` removes one that isn't."""
    path = folder / layout.RESULT_FILE
    if not path.is_file():
        return False
    with suppress(ValueError):
        result = TrainingResult.model_validate_json(path.read_bytes(), context=Document(path.absolute()))
        weights = (result.checkpoint.adapter, result.checkpoint.model)
        if result.plan_digest == plan.digest() and all(digest_dir(Path(w.uri)) == w.digest for w in weights):
            return True
    if mend:
        with only_writer(folder):
            path.unlink(missing_ok=True)
    return False


def verify_inputs(plan: TrainingPlan) -> None:
    """Raise ValueError unless data and base are, to the bit, those that the plan was made for."""
    if plan.data is None:
        raise ValueError(f"The plan's decision is {plan.decision.method!r}: there is nothing to train.")
    for data in (plan.data, plan.held_out):
        if data is not None and digest_file(Path(data.uri)) != data.digest:
            raise ValueError(f"{data.uri} changed since the plan was made. Make it again: pt retry training_plan")
    scorer = plan.scorers.reward_model if plan.scorers is not None else None
    if scorer is not None and digest_dir(Path(scorer.uri)) != scorer.digest:
        raise ValueError(f"{scorer.uri}, which scores completions, changed since the plan was made. Restore it.")
    if digest_dir(Path(plan.base.uri)) != plan.base.digest:
        raise ValueError(f"{plan.base.uri} changed since the plan was made. Restore it, or start a new iteration.")


if __name__ == "__main__":
    options = argparse.ArgumentParser(prog="python -m pipeline.training")
    options.add_argument("plan")
    options.add_argument("--node-rank", type=int, default=0)
    options.add_argument("--master", default="", help="host:port of node 0")
    options.add_argument("--nemo-rl", default=CHECKOUT, help="checkout of NeMo RL, for a plan with that engine")
    options.add_argument("--attempt", type=int, default=0, help="the launcher's, counted from 1")
    options.add_argument("--parent", type=int, help="pid of who starts this process, which ends with it")
    given = options.parse_args()
    guard_output()
    die_with_parent(parent=given.parent)
    sys.exit(main(given.plan, given.node_rank, given.master, given.nemo_rl, given.attempt))
