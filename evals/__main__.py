"""`pt evals COMMAND`: scores of models, and the gate's work by hand. Exit codes: 0 done, 1 a crash, a wrong argument or
a bundle that is not intact; of `answer` also 64 never retry (the plan or what it names is wrong) and 143 pre-empted."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from evals import models, report
from evals.bundle import verify
from evals.evaluate import EvalServices, evaluate, inference
from evals.records import EvalPlan, ModelScores
from pipeline.core.locations import record_of_iteration
from pipeline.core.redaction import guard_output
from pipeline.core.storage import Store, model_ref
from pipeline.recipe import load, override_tree
from pipeline.recipe.rewards import Verifier
from pipeline.rewards.judge import JudgeAway
from pipeline.rewards.judge.session import judge_endpoint
from pipeline.rewards.verifiers import Grader
from pipeline.serving.endpoint import serving_addresses

CRASHED, NEVER_RETRY, PREEMPTED = 1, 64, 143


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt evals", description="Evaluate, and check evidence.")
    commands = options.add_subparsers(required=True)
    _add_run(commands.add_parser("run", help="score a model, or compare two, without an iteration"))
    answer = commands.add_parser("answer", help="answer an iteration's questions and publish its evidence")
    answer.add_argument("plan", type=Path, help="iterations/ID/eval_plan.json below the data root")
    answer.set_defaults(act=_answer, refused=NEVER_RETRY)
    check = commands.add_parser("verify", help="recompute the verdict of an evidence bundle and print it as JSON")
    check.add_argument("bundle", help="directory of the bundle")
    check.add_argument("digest", nargs="?", default="", help="the digest that the bundle must have")
    check.set_defaults(act=_verify, refused=1)
    return options


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument("models", nargs="+", metavar="MODEL", help="folder of a model; a second one is compared with it")
    run.add_argument("--suite", nargs="+", action="extend", required=True, metavar="NAME", help="preset, or recipe's")
    run.add_argument("--path", nargs="+", action="extend", default=[], metavar="FILE", help="of each preset, in order")
    run.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="K=V", help="preset's: samples_per_item=4"
    )
    run.add_argument("--recipe", default="", help="engine, seed, limits and suites are its own; default: the presets'")
    run.add_argument("--override", nargs="+", action="extend", default=[], metavar="K=V", help="of the recipe")
    run.add_argument("--folder", default="", help="keeps the answers; default: the recipe's data root, else data")
    run.add_argument("--json", action="store_true", help="JSON in place of tables")
    run.set_defaults(act=_run, refused=1)


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
    os.environ["HF_HUB_OFFLINE"] = "1"
    if len(chosen.models) > 2 or (chosen.override and not chosen.recipe):
        raise ValueError("Give one model or two, and --override with the --recipe that it changes.")
    recipe = load(chosen.recipe, chosen.override) if chosen.recipe else None
    section = models.section_of(chosen.suite, chosen.path, override_tree(chosen.set), recipe)
    store = Store(chosen.folder or (recipe.data_root if recipe else "data"))
    asked = [model_ref(Path(folder).absolute()) for folder in chosen.models]
    verifier = recipe.rewards.verifier if recipe else Verifier()
    with (
        inference(store, section, serving_addresses(os.environ), _progress) as engine,
        closing(Grader(verifier)) as check,
    ):
        asker = models.Asker(store, section, EvalServices(engine, check), _progress, section.seed)
        measured = models.compared(asker, *asked) if len(asked) == 2 else models.scores(asker, *asked)
    if chosen.json:
        print(measured.model_dump_json(indent=2))
    else:
        for part, model in zip(("champion", "candidate") if len(asked) == 2 else ("model",), asked, strict=True):
            print(f"{part}: {model.uri} ({model.digest[:12]})")
        single = isinstance(measured, ModelScores)
        print(report.scores_table(measured) if single else report.comparison_table(measured, section))
    return 0


def _answer(chosen: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _preempted)
    os.environ["HF_HUB_OFFLINE"] = "1"
    document = record_of_iteration(chosen.plan)
    plan = EvalPlan.model_validate_json(chosen.plan.read_bytes(), context=document)
    store = Store(document.root or chosen.plan.parent)
    addresses = serving_addresses(os.environ)
    with inference(store, plan.section, addresses, _log) as engine, closing(Grader(plan.verifier)) as check:
        services = EvalServices(engine, check, judge_endpoint(os.environ))
        evaluate(store, plan, services, _log)
    return 0


def _verify(chosen: argparse.Namespace) -> int:
    print(verify(chosen.bundle, chosen.digest).model_dump_json(indent=2))
    return 0


def _log(line: str) -> None:
    print(line, flush=True)


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _preempted(*_: object) -> None:
    """Ends the engine on the way out; what was answered is in the journal."""
    raise SystemExit(PREEMPTED)


if __name__ == "__main__":
    sys.exit(main())
