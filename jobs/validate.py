"""A deployment checked without a run: `pt validate [RECIPE] [--override K=V ...] [--quick]`.

The recipe, the environment, model, disk and source; then, without --quick, the gate's suites. The source's rows are the
traces stage's to judge. Nothing is written. Exit codes: 0 nothing speaks against a launch, 1 something does (it says
what), 2 it could not be checked (it says why).
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from assets.gate import gate_refusals, readable
from assets.preflight import launch_faults
from assets.resources import Deployment
from evals.freezing import unfreezable
from evals.suites import Suite
from jobs.recipe_choice import add_recipe_arguments, recipe_choice
from jobs.screen import GREEN, RED, paint
from k8s.launch import recipe_refusals
from pipeline.core.storage import Store
from pipeline.models.check import check_base
from pipeline.recipe import Recipe
from pipeline.recipe.suites import TracesSuite
from pipeline.rollout.policy import policy_of
from pipeline.rollout.rules import stage_power
from pipeline.traces.detect import wrong_kind


class CheckedLine(NamedTuple):
    """One thing that was looked at."""

    fine: bool
    text: str


def fine(text: str) -> CheckedLine:
    return CheckedLine(True, text)


def problem(text: str) -> CheckedLine:
    return CheckedLine(False, text)


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    lines: list[CheckedLine] = []
    try:
        for line in validate(asked):
            lines.append(line)
            if not asked.json:
                mark = paint(f"{'ok' if line.fine else 'PROBLEM':<7}", GREEN if line.fine else RED, sys.stdout.isatty())
                print(f"{mark}  {line.text}", flush=True)
    except AssertionError:  # a bug of ours keeps its traceback
        raise
    except Exception as error:  # boundary: a person at a terminal; drivers have errors of their own
        print(f"validate: {error} ({type(error).__name__})", file=sys.stderr)
        return 2
    is_fine = all(line.fine for line in lines)
    if asked.json:
        print(json.dumps({"fine": is_fine, "lines": [line._asdict() for line in lines]}, indent=2))
    return 0 if is_fine else 1


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="pt validate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_recipe_arguments(options)
    options.add_argument("--quick", action="store_true", help="a second or two: no suite is read")
    options.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return options


def validate(asked: argparse.Namespace) -> Iterator[CheckedLine]:
    """One line for each thing that was looked at, as it is known."""
    try:
        settings = Deployment(**recipe_choice(asked)._asdict())
    except ValueError as error:
        yield problem(str(error))
        return
    faults = launch_faults(settings)
    yield from (problem(fault.strip()) for fault in faults)
    try:
        recipe = settings.recipe()
    except ValueError:
        return
    yield fine(f"{settings.recipe_path} resolves: {recipe.name}, digest {recipe.digest()[:12]}")
    if not (faults or asked.quick):
        for finding in check_base(Path(settings.champion().model.uri), recipe.training.lora):
            told = "" if finding.level == "ok" else f"{finding.level}: "
            yield CheckedLine(finding.level != "error", f"base_model.uri: {finding.question}: {told}{finding.text}")
        if wrong := wrong_kind(recipe.traces.source):
            yield fine(f"traces.source: warning: {wrong}")
    yield from _rollout(recipe)
    yield from (problem(fault) for fault in recipe_refusals(recipe))
    yield from _gate(recipe, settings.store(), asked.quick)


def _rollout(recipe: Recipe) -> Iterator[CheckedLine]:
    """How long a rollout takes at least, and with what power."""
    if recipe.rollout.traffic.kind == "none":
        return
    try:
        policy = policy_of(recipe.rollout)
        yield fine(f"rollout: {sum(policy.dwell_s) / 86_400:,.1f} days at least")
        for stage, weight in enumerate(policy.canary_weights if policy.gradable else ()):
            answers, power = stage_power(policy, stage)
            yield fine(f"rollout at {weight}%: {answers:,} graded canary answers; an equal canary passes {power:.0%}")
    except ValueError as error:
        yield problem(str(error))


def _gate(recipe: Recipe, store: Store, is_quick: bool) -> Iterator[CheckedLine]:
    section = recipe.evaluation
    asked: list[Suite] = []
    for each in () if is_quick else section.asked:
        try:
            if (read := readable(each, store, section.seed)) is not None:
                asked.append(read)
            elif isinstance(each, TracesSuite):
                if (why := unfreezable(store, each)) and each.name in section.gating:
                    raise ValueError(why)
                then = f"not asked yet. {why}" if why else "preference_dataset will freeze it"
                yield fine(f"suite {each.name} ({each.role}): {then}")
        except ValueError as error:
            yield problem(f"suite {each.name}: {error}")
    refusals = gate_refusals(recipe, recipe.base_model.uri, asked)
    yield from (problem(f"evaluation: {refusal}") for refusal in refusals)
    for each in asked if not refusals else ():
        yield fine(f"suite {each.name} ({section.suite(each.name).role}): {len(each.items):,} items")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
