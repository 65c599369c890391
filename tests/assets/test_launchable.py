"""The check before a launch: what the lint and the budget say of a plan."""

import shutil
import sys
from functools import cache
from pathlib import Path

import dagster as dg
import pytest

from assets.cluster import launchable
from evals.suites import Item, Suite, lines
from pipeline.core.storage import ModelRef
from pipeline.demo import MODEL_DIR
from pipeline.demo.suite import suite_text
from pipeline.recipe import Recipe, load
from pipeline.recipe.suites import ItemsSuite, SuiteSection, preset_suite
from pipeline.training.plan import TrainingPlan
from tests.pipeline.training.plans import make_plan

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "jobs" / "recipes"
SPOT = RECIPES / "spot_h200_dpo.yaml"
BUILT = f"compute.kubernetes.image=example.com/trainer@sha256:{'5' * 64}"
PLAN_PATH = Path("/checkpoints/preference-tuning/iterations/x/training/plan.json")


@pytest.fixture(autouse=True)
def vllm_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """What recipes whose engine is vLLM want to be told: it is not started here."""
    monkeypatch.setenv("VLLM_PYTHON", sys.executable)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> TrainingPlan:
    _, made = make_plan(tmp_path_factory.mktemp("plan"), processes=8)
    return made.model_copy(update={"nodes": 3})


def checked(recipe: Recipe, plan: TrainingPlan, path: Path) -> dg.AssetCheckResult:
    return launchable(recipe, plan, path, lambda: tuple(map(asked, recipe.evaluation.asked)))


def asked(section: SuiteSection) -> Suite:
    """The embedded suite; of a file that a recipe names and nobody has here, so many items."""
    return Suite(
        name=section.name,
        items=items_of(section.items if isinstance(section, ItemsSuite) and section.embedded else 1300),
    )


@cache
def items_of(count: int) -> tuple[Item, ...]:
    return lines.parse_embedded(suite_text(preset_suite("arithmetic", items=count), 11).encode())


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], ""),
        (["compute.budget_usd=100000"], ""),
        (["compute.budget_usd=10"], "compute.budget_usd is 10.00. Raise it to"),
        (["compute.kubernetes.instance_type=g5.12xlarge"], "8"),
        (["data_root=/elsewhere"], "/elsewhere"),
    ],
    ids=["as it is", "enough money", "too little money", "four GPUs", "not on the volume"],
)
def test_a_launch_that_cannot_go_well_is_refused_before_it_costs(
    plan: TrainingPlan, overrides: list[str], words: str
) -> None:
    short = "evaluation.max_completion_tokens=512"  # as the embedded model's context is
    recipe = load(SPOT, [BUILT, short, *overrides])
    path = Path(recipe.data_root) / "iterations" / "x" / "training" / "plan.json"
    check = checked(recipe, plan, path)
    assert check.passed is (not words), check.description
    assert words in str(check.description)
    assert "USD" in str(check.metadata["bill"])


def test_a_machine_of_its_own_has_nothing_to_lint(plan: TrainingPlan) -> None:
    assert checked(load(RECIPES / "embedded.yaml"), plan, PLAN_PATH).passed


def test_a_plan_that_is_not_to_train_has_nothing_to_launch(plan: TrainingPlan) -> None:
    assert checked(load(SPOT), plan.model_copy(update={"data": None}), PLAN_PATH).passed


def test_the_demo_model_under_another_name_is_the_demo_model(plan: TrainingPlan, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(MODEL_DIR, tmp_path / "copy"))
    recipe = load(RECIPES / "embedded.yaml", [f"base_model.uri={copy}"])
    promoted = plan.model_copy(update={"base": ModelRef(uri=str(tmp_path / "promoted"), digest="p")})
    assert checked(recipe, promoted, PLAN_PATH).passed


JUDGED = (
    "evaluation.suites=[{kind: items, preset: arithmetic},"
    " {kind: judged, name: preference, over: arithmetic, role: %s}]"
)
JUDGE = "rewards.judge={model: examiner, digest: 'sha256:0f'}"
ANOTHER = "evaluation.judge={model: another, digest: 'sha256:1f'}"
UNTAUGHT = [f"rewards.{profile}={{feedback: 1}}" for profile in ("rated", "judged", "fresh")]


@pytest.mark.parametrize(
    ("overrides", "url", "words"),
    [
        ([JUDGED % "target", JUDGE, ANOTHER], "http://127.0.0.1:9/v1", ""),
        ([JUDGED % "target", JUDGE], "http://127.0.0.1:9/v1", "whose scores are trained on"),
        ([JUDGED % "target", JUDGE, *UNTAUGHT], "http://127.0.0.1:9/v1", ""),
        ([JUDGED % "guard", JUDGE], "http://127.0.0.1:9/v1", ""),
        ([JUDGED % "report"], "", ""),
        ([JUDGED % "target"], "http://127.0.0.1:9/v1", "the recipe has no judge. Set rewards.judge to"),
        ([JUDGED % "guard", JUDGE], "", "no endpoint of the judge is set: set JUDGE_URL"),
        ([JUDGED % "target", JUDGE, "evaluation.suites.1.items=100"], "http://j/v1", "Take 246 items"),
    ],
)
def test_a_judged_suite_that_gates_needs_its_judge(
    plan: TrainingPlan, monkeypatch: pytest.MonkeyPatch, overrides: list[str], url: str, words: str
) -> None:
    monkeypatch.setenv("JUDGE_URL", url)
    check = checked(load(RECIPES / "embedded.yaml", overrides), plan, PLAN_PATH)
    assert check.passed is (not words), check.description
    assert words in str(check.description)
