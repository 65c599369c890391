"""`python -m evals COMMAND`: the gate's work by hand, or where Dagster is not.

    run PLAN                  answer an evaluation's questions and publish its evidence: on the machine that has the GPU
    verify BUNDLE [DIGEST]    recompute a verdict offline and print it as JSON

Exit codes: 0 done; of `verify` 1 where the bundle is not intact; of `run` 64 never retry (the plan or what it names is
wrong), 143 pre-empted, anything else a crash: run it again, and what was answered is not asked again.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import closing
from pathlib import Path

from evals.bundle import verify
from evals.evaluate import evaluate
from evals.plan import EvalPlan, inference
from pipeline.locations import record_of_iteration
from pipeline.rewards.verifiers import grader_of
from pipeline.serving.endpoint import serving_addresses
from pipeline.storage import Store

NEVER_RETRY, PREEMPTED = 64, 143


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m evals", description="Evaluate candidates and check evidence.")
    commands = parser.add_subparsers(required=True, dest="command")
    run = commands.add_parser("run", help="answer an evaluation's questions and publish its evidence")
    run.add_argument("plan", help="iterations/ID/eval_plan.json below the data root")
    check = commands.add_parser("verify", help="recompute the verdict of an evidence bundle and print it as JSON")
    check.add_argument("bundle", help="directory of the bundle")
    check.add_argument("digest", nargs="?", default="", help="the digest that the bundle must have")
    chosen = parser.parse_args(arguments)
    return run_plan(Path(chosen.plan)) if chosen.command == "run" else verify_bundle(chosen.bundle, chosen.digest)


def run_plan(path: Path) -> int:
    signal.signal(signal.SIGTERM, _preempted)
    os.environ["HF_HUB_OFFLINE"] = "1"
    document = record_of_iteration(path)
    try:
        plan = EvalPlan.model_validate_json(path.read_bytes(), context=document)
        store = Store(document.root or path.parent)
        with (
            inference(store, plan, serving_addresses(os.environ), _log) as engine,
            closing(grader_of(plan.verifier)) as check,
        ):
            evaluate(store, plan, engine, check, _log)
    except (FileNotFoundError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return NEVER_RETRY
    return 0


def verify_bundle(bundle: str, digest: str) -> int:
    try:
        print(verify(bundle, digest).model_dump_json(indent=2))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _log(line: str) -> None:
    print(line, flush=True)


def _preempted(*_: object) -> None:
    """Ends the engine on the way out; what was answered is in the journal."""
    raise SystemExit(PREEMPTED)


if __name__ == "__main__":
    sys.exit(main())
