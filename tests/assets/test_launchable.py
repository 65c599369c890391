"""The check before a launch: what the lint and the budget say of a plan."""

import shutil
import sys
from functools import cache
from pathlib import Path

import dagster as dg
import pytest
from safetensors.numpy import load_file, save_file

from assets import gate
from assets.cluster import launchable
from evals.suites import Item, Suite, lines
from pipeline.core.storage import ModelRef, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.desk import MODEL_DIR as DESK_DIR
from pipeline.demo.suite import suite_text
from pipeline.recipe import Recipe, load
from pipeline.recipe.suites import ItemsSuite, SuiteSection, preset_suite
from pipeline.serving.engines import Machine
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


def test_a_package_that_this_machine_lacks_refuses_the_launch(tmp_path: Path) -> None:
    here, here_plan = load(RECIPES / "embedded.yaml"), make_plan(tmp_path, method="grpo")[1]
    drawn = {"generation": "vllm_colocate"}
    wants = here_plan.trained_by().model_copy(update=drawn)
    check = checked(here, here_plan.model_copy(update={"method": wants}), PLAN_PATH)
    assert not check.passed and "lacks vllm. Install" in str(check.description)


def test_a_plan_that_is_not_to_train_has_nothing_to_launch(plan: TrainingPlan) -> None:
    assert checked(load(SPOT), plan.model_copy(update={"data": None}), PLAN_PATH).passed


@pytest.fixture
def own_model(tmp_path: Path) -> Path:
    """The embedded model with one weight changed: another model."""
    folder = Path(shutil.copytree(MODEL_DIR, tmp_path / "own"))
    tensors = load_file(folder / "model.safetensors")
    first = next(iter(tensors))
    save_file(tensors | {first: tensors[first] * 1.01}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_the_demo_suite_under_another_model_is_refused(plan: TrainingPlan, own_model: Path) -> None:
    recipe = load(RECIPES / "embedded.yaml", [f"base_model.uri={own_model}"])
    own = plan.model_copy(update={"base": model_ref(own_model)})
    check = checked(recipe, own, PLAN_PATH)
    assert not check.passed
    assert "the gate's suite arithmetic asks what the embedded model was made for" in str(check.description)
    assert "accept_demo_suite: true" in str(check.description)
    assert checked(recipe.model_copy(update={"accept_demo_suite": True}), own, PLAN_PATH).passed


def test_the_demo_model_under_another_name_is_the_demo_model(plan: TrainingPlan, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(MODEL_DIR, tmp_path / "copy"))
    recipe = load(RECIPES / "embedded.yaml", [f"base_model.uri={copy}"])
    promoted = plan.model_copy(update={"base": ModelRef(uri=str(tmp_path / "promoted"), digest="p")})
    assert checked(recipe, promoted, PLAN_PATH).passed


def test_a_model_too_large_for_its_evaluation_is_refused(plan: TrainingPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "this_machine", lambda: Machine(1_000_000, ()))
    check = checked(load(RECIPES / "embedded.yaml"), plan, PLAN_PATH)
    assert not check.passed
    assert "the weights take 0.0 GB where they are evaluated" in str(check.description)


ENDPOINT = "evaluation.serving={kind: endpoint, champion: old, candidate: new}"


@pytest.mark.parametrize(
    ("overrides", "variable", "value", "words"),
    [
        (["evaluation.serving={kind: vllm}"], "VLLM_PYTHON", "", "VLLM_PYTHON ('') is no Python. Set it"),
        ([ENDPOINT], "SERVING_URL", "", "SERVING_URL is empty. Set it"),
        ([ENDPOINT], "SERVING_URL", "http://127.0.0.1:9/v1", ""),
    ],
)
def test_an_engine_without_an_address_is_refused(
    plan: TrainingPlan, monkeypatch: pytest.MonkeyPatch, overrides: list[str], variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv("SERVING_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv(variable, value)
    check = checked(load(RECIPES / "embedded.yaml", overrides), plan, PLAN_PATH)
    assert check.passed is (not words), check.description
    assert words in str(check.description)


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


def test_the_desk_brings_its_model_and_its_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_URL", raising=False)
    recipe = load(RECIPES / "desk.yaml")
    another = load(RECIPES / "desk.yaml", ["evaluation.judge={model: a-judge, digest: d}"])
    suites = [asked_of_the_desk(recipe)]
    assert not [line for line in gate.gate_refusals(recipe, str(DESK_DIR), suites) if "JUDGE_URL" in line]
    assert [line for line in gate.gate_refusals(another, str(DESK_DIR), suites) if "set JUDGE_URL" in line]
    assert not [line for line in gate.gate_refusals(recipe, str(DESK_DIR), suites) if "was made for" in line]
    foreign = load(RECIPES / "desk.yaml", [f"base_model.uri={MODEL_DIR}"])
    assert [line for line in gate.gate_refusals(foreign, str(MODEL_DIR), suites) if "suite desk asks" in line]


def asked_of_the_desk(recipe: Recipe) -> Suite:
    section = recipe.evaluation.suites[0]
    assert isinstance(section, ItemsSuite)
    return Suite(name=section.name, items=lines.parse_embedded(suite_text(section, 11).encode()))
