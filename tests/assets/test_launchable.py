"""The check before a launch: what the lint and the budget say of a plan."""

from pathlib import Path

import pytest

from assets.cluster import launchable
from pipeline.recipe import load
from pipeline.training.plan import TrainingPlan
from tests.pipeline.training.plans import make_plan

RECIPES = Path(__file__).parents[2] / "jobs" / "recipes"
SPOT = RECIPES / "spot_h200_dpo.yaml"
PLAN_PATH = Path("/checkpoints/preference-tuning/iterations/x/training/plan.json")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> TrainingPlan:
    _, made = make_plan(tmp_path_factory.mktemp("plan"), processes=8)
    return made.model_copy(update={"nodes": 3})


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], ""),
        (["compute.budget_usd=100000"], ""),
        (["compute.budget_usd=1000"], "compute.budget_usd is 1,000.00. Raise it to"),
        (["compute.kubernetes.instance_type=g5.12xlarge"], "8"),
        (["data_root=/elsewhere"], "/elsewhere"),
    ],
    ids=["as it is", "enough money", "too little money", "four GPUs", "not on the volume"],
)
def test_a_launch_that_cannot_go_well_is_refused_before_it_costs(
    plan: TrainingPlan, overrides: list[str], words: str
) -> None:
    recipe = load(SPOT, overrides)
    path = Path(recipe.data_root) / "iterations" / "x" / "training" / "plan.json"
    check = launchable(recipe, plan, path)
    assert check.passed is (not words), check.description
    assert words in str(check.description)
    assert "USD" in str(check.metadata["bill"])


def test_a_machine_of_its_own_has_nothing_to_lint(plan: TrainingPlan) -> None:
    assert launchable(load(RECIPES / "embedded.yaml"), plan, PLAN_PATH).passed


def test_a_plan_that_is_not_to_train_has_nothing_to_launch(plan: TrainingPlan) -> None:
    assert launchable(load(SPOT), plan.model_copy(update={"data": None}), PLAN_PATH).passed
