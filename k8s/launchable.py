"""Whether a plan may be launched: the lint of its gang and of its evaluation's, and its cost beside the budget."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from k8s.estimate import LaunchEstimate, estimate_launch, expected_hours, over_budget
from k8s.gang import evaluation_gang, gang_of
from k8s.lint import Violation, lint_gang
from k8s.render import render
from pipeline.core import layout
from pipeline.recipe import Recipe
from pipeline.training.plan import TrainingPlan


class LaunchCheck(NamedTuple):
    """`refusals`: why it may not be launched; empty when nothing speaks against it."""

    findings: list[Violation]
    cost: LaunchEstimate
    refusals: list[str]


def check_launch(recipe: Recipe, plan: TrainingPlan, plan_path: Path) -> LaunchCheck:
    """The lint of the rendered gang, where the recipe has a cluster, and the expected cost of a plan that trains."""
    method, settings = plan.trained_by(), recipe.compute.kubernetes
    findings: list[Violation] = []
    if settings is not None:
        gang = gang_of(plan, plan_path, settings)
        findings = lint_gang(gang, render(gang))
    if recipe.compute.evaluation is not None:
        path = plan_path.parent.with_name(layout.EVAL_PLAN)
        gang = evaluation_gang(plan.iteration, "0" * 64, path, recipe.compute)
        findings += lint_gang(gang, render(gang))
    expected, timeout_s = plan.decision.expected.get(method.kind), recipe.training.timeout_s
    hours = expected_hours(expected, timeout_s) if expected else (0.0, timeout_s / 3600)
    cost = estimate_launch(recipe.compute, hours, recipe.training.checkpoints)
    refusal = over_budget(cost, recipe.compute.budget_usd)
    errors = [finding for finding in findings if finding.severity == "error"]
    return LaunchCheck(
        findings=findings,
        cost=cost,
        refusals=[refusal] * bool(refusal) + [f"{each.rule}: {each.problem} {each.fix}" for each in errors],
    )
