"""Evidence bundles and plans of gates.

python -m evals verify BUNDLE [DIGEST]   recompute a verdict offline; 0 when the bundle is intact, else 1
python -m evals plan RECIPE              what a gate could show and what it costs; 0 when a candidate could pass
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from evals.bundle import verify
from evals.planner import earlier_run, page
from evals.power import AnswerCost
from pipeline.recipe import load


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m evals", description="Check evidence bundles, and plan gates.")
    commands = parser.add_subparsers(required=True, dest="command")
    check = commands.add_parser("verify", help="recompute the verdict of an evidence bundle and print it as JSON")
    check.add_argument("bundle", help="directory of the bundle")
    check.add_argument("digest", nargs="?", default="", help="the digest that the bundle must have")
    plan = commands.add_parser("plan", help="print what a recipe's gate could show, and what it costs")
    plan.add_argument("recipe", help="the recipe's file")
    plan.add_argument("overrides", nargs="*", help="such as evaluation.samples_per_item=2")
    plan.add_argument("--bundle", type=Path, help="an earlier bundle of the same suites: its variances and lengths")
    plan.add_argument("--answer-tokens", type=float, default=0.0, help="mean tokens of an answer")
    plan.add_argument("--tokens-per-second", type=float, help="of the engine, all requests together")
    plan.add_argument("--usd-per-hour", type=float, help="of the machine that the engine runs on")
    plan.add_argument("--item-cost", type=float, default=0.0, help="price of another item, in answers")
    chosen = parser.parse_args(arguments)
    try:
        return _verify(chosen) if chosen.command == "verify" else _plan(chosen)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1


def _verify(chosen: argparse.Namespace) -> int:
    print(verify(chosen.bundle, chosen.digest).model_dump_json(indent=2))
    return 0


def _plan(chosen: argparse.Namespace) -> int:
    answer = AnswerCost(chosen.answer_tokens, chosen.tokens_per_second, chosen.usd_per_hour)
    if min(each for each in (*answer, chosen.item_cost) if each is not None) < 0:
        raise ValueError("Tokens, prices and speeds are not below 0. Give numbers of at least 0.")
    earlier = earlier_run(chosen.bundle) if chosen.bundle else None
    text, possible = page(load(chosen.recipe, chosen.overrides), earlier, answer, chosen.item_cost)
    print(text, end="")
    return 0 if possible else 1


if __name__ == "__main__":
    sys.exit(main())
