"""`pt evals COMMAND`: the gate's work by hand. Exit codes: 0 done, 1 a crash or a bundle that is not intact; of `run`
also 64 never retry (the plan or what it names is wrong) and 143 pre-empted."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from evals.bundle import verify
from evals.evaluate import EvalServices, evaluate, inference
from evals.records import EvalPlan
from pipeline.core.locations import record_of_iteration
from pipeline.core.redaction import guard_output
from pipeline.core.storage import Store
from pipeline.rewards.judge import JudgeAway
from pipeline.rewards.judge.session import judge_endpoint
from pipeline.rewards.verifiers import Grader
from pipeline.serving.endpoint import serving_addresses

CRASHED, NEVER_RETRY, PREEMPTED = 1, 64, 143


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt evals", description="Evaluate, and check evidence.")
    commands = options.add_subparsers(required=True)
    run = commands.add_parser("run", help="answer an evaluation's questions and publish its evidence")
    run.add_argument("plan", type=Path, help="iterations/ID/eval_plan.json below the data root")
    run.set_defaults(act=_run, refused=NEVER_RETRY)
    check = commands.add_parser("verify", help="recompute the verdict of an evidence bundle and print it as JSON")
    check.add_argument("bundle", help="directory of the bundle")
    check.add_argument("digest", nargs="?", default="", help="the digest that the bundle must have")
    check.set_defaults(act=_verify, refused=1)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    guard_output()  # also in a pod, which has the keys of judge and endpoint
    chosen = parser().parse_args(arguments)
    try:
        return chosen.act(chosen)
    except JudgeAway as error:
        print(error, file=sys.stderr)
        return CRASHED
    except (FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return chosen.refused
    except (OSError, RuntimeError) as error:  # a full disk, a server that is lost: it may pass
        print(error, file=sys.stderr)
        return CRASHED


def _run(chosen: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _preempted)
    os.environ["HF_HUB_OFFLINE"] = "1"
    document = record_of_iteration(chosen.plan)
    plan = EvalPlan.model_validate_json(chosen.plan.read_bytes(), context=document)
    store = Store(document.root or chosen.plan.parent)
    addresses = serving_addresses(os.environ)
    with inference(store, plan, addresses, _log) as engine, closing(Grader(plan.verifier)) as check:
        services = EvalServices(engine, check, judge_endpoint(os.environ))
        evaluate(store, plan, services, _log)
    return 0


def _verify(chosen: argparse.Namespace) -> int:
    print(verify(chosen.bundle, chosen.digest).model_dump_json(indent=2))
    return 0


def _log(line: str) -> None:
    print(line, flush=True)


def _preempted(*_: object) -> None:
    """Ends the engine on the way out; what was answered is in the journal."""
    raise SystemExit(PREEMPTED)


if __name__ == "__main__":
    sys.exit(main())
