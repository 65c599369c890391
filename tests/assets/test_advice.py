"""What a refused recipe is told to set: the fields are there, and typed as it is said the recipe is refused no more."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assets import gate
from assets.preflight import check
from assets.resources import Deployment
from jobs.recipe import fields
from k8s.launch import recipe_refusals
from pipeline.demo.desk import MODEL_DIR as DESK_DIR
from pipeline.recipe import load
from pipeline.serving.engines import Machine
from pipeline.training import launch

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "jobs" / "recipes"
DIGEST = f"@sha256:{'5' * 64}"
TRAINER, NEMO_RL = (f"compute.kubernetes.image=example.com/{kind}{DIGEST}" for kind in ("trainer", "nemo-rl"))
ADVISERS = (
    "k8s/lint/recipes.py", "k8s/launch.py", "k8s/hours.py", "k8s/estimate.py", "k8s/gang.py", "evals/power.py",
    "assets/gate.py", "assets/preflight.py", "pipeline/training/launch.py", "pipeline/serving/engines.py",
)  # fmt: skip
SECTIONS = "compute|training|evaluation|rewards|samples|selection|traces|rollout"
FIELD = re.compile(rf"(?<![\w./-])(?:{SECTIONS})\.[a-z_.]*[a-z_]")
SEVERAL = "{kind: items, preset: arithmetic}, {kind: judged, name: preference, over: arithmetic, role: target"


def texts(file: str) -> Iterator[str]:
    tree = ast.parse((ROOT / file).read_text())
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


@pytest.mark.parametrize("file", ADVISERS)
def test_each_field_that_is_named_is_there(file: str) -> None:
    there = {row.field for row in fields("")}
    assert {name for text in texts(file) for name in FIELD.findall(text)} - there == set()


@pytest.mark.parametrize(
    ("recipe", "mistake", "refusal", "fix"),
    [
        ("dpo", "compute.processes=9", "at most the GPUs of the instance", "compute.processes=8"),
        ("dpo", "data_root=/elsewhere", "below compute.kubernetes.mount", "data_root=/checkpoints/tuning"),
        ("dpo", "training.grace_s=5", "Set training.grace_s between", "training.grace_s=100"),
        ("dpo", "compute.kubernetes.backend=rayjob", "jobset or volcano for trl", "compute.kubernetes.backend=volcano"),
        ("grpo", "compute.kubernetes.backend=jobset", "rayjob for nemo_rl", "compute.kubernetes.backend=rayjob"),
        ("grpo", TRAINER, "nemo-rl.Dockerfile for engine nemo_rl", NEMO_RL),
        ("dpo", NEMO_RL, "trainer.Dockerfile for trl", TRAINER),
        ("dpo", f"compute.kubernetes.image=a/b@sha256:{'0' * 64}", "put the digest", TRAINER),
        ("dpo", "compute.kubernetes.env={RANK: '1'}", "out of compute.kubernetes.env", "compute.kubernetes.env={}"),
        ("dpo", "compute.kubernetes.instance_type=p9", "to one of p5en.48xlarge",
         "compute.kubernetes.instance_type=p5en.48xlarge"),
        ("grpo", "compute.budget_usd=1000", "Raise it to 2220", "compute.budget_usd=2220"),
    ],
)  # fmt: skip
def test_a_gang_s_advice_works_when_typed(recipe: str, mistake: str, refusal: str, fix: str) -> None:
    built = [NEMO_RL if recipe == "grpo" else TRAINER]

    def refusals(*overrides: str) -> list[str]:
        return recipe_refusals(load(RECIPES / f"spot_h200_{recipe}.yaml", [*built, *overrides]))

    assert refusals() == []
    assert [line for line in refusals(mistake) if refusal in line]
    assert refusals(mistake, fix) == []


def refused(root: Path, *overrides: str) -> list[str]:
    """As the run's first step refuses it, before samples and labels; every suite here is the demo's."""
    given = [f"data_root={root}", *overrides]
    deployment = Deployment(recipe_path=str(RECIPES / "embedded.yaml"), overrides=given)
    return [line.text for line in check(deployment) if not line.fine and "_URL: no answer" not in line.text]


@pytest.mark.parametrize(
    ("mistake", "refusal", "fix"),
    [
        ("training.grpo.generation=vllm_colocate", "set training.grpo.generation to transformers",
         "training.grpo.generation=transformers"),
        ("training.lora.quantise=nf4", "set training.lora.quantise to none", "training.lora.quantise=none"),
        ("training.distribution.strategy=zero2", "set training.distribution.strategy to fsdp2",
         "training.distribution.strategy=fsdp2"),
        ("evaluation.alpha=0", "Set it to 0.05", "evaluation.alpha=0.05"),
        ("evaluation.suites.0.floor=1", "Lower it", "evaluation.suites.0.floor=0.5"),
        ("evaluation.suites.0.items=150", "Take 181 items", "evaluation.suites.0.items=181"),
        ("evaluation.suites.0.items=150", "its samples_per_item to 3", "evaluation.suites.0.samples_per_item=3"),
        ("evaluation.guard_margin=0.002", "or raise evaluation.guard_margin", "evaluation.guard_margin=0.01"),
        ("evaluation.max_completion_tokens=4096", "Lower the suite's max_completion_tokens",
         "evaluation.suites.0.max_completion_tokens=32"),
        (f"base_model.uri={DESK_DIR}", "set accept_demo_suite: true", "accept_demo_suite=true"),
    ],
)  # fmt: skip
def test_the_gate_s_advice_works_when_typed(
    mistake: str, refusal: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_is_installed", lambda package: package in launch.TRAINS)
    assert [line for line in refused(tmp_path, mistake) if refusal in line]
    assert refused(tmp_path, mistake, fix) == []


JUDGE = "rewards.judge={model: NAME, digest: DIGEST}"
ANOTHER_JUDGE = "evaluation.judge={model: ANOTHER, digest: OTHER}"
ENDPOINT = "evaluation.serving={kind: endpoint, champion: NAME, candidate: NAME}"


JUDGED = f"evaluation.suites=[{SEVERAL}, items: 400}}]"


@pytest.mark.parametrize(
    ("mistakes", "refusal", "fix"),
    [
        ([JUDGED.replace("target", "guard")], "Set rewards.judge to {model: NAME, digest: DIGEST}", JUDGE),
        ([JUDGED, JUDGE], "Set evaluation.judge to {model: NAME, digest: DIGEST}", ANOTHER_JUDGE),
        ([JUDGED.replace("400", "900"), ANOTHER_JUDGE], "Set its items to 500", "evaluation.suites.1.items=500"),
    ],
)
def test_a_judge_s_advice_works_when_typed(
    mistakes: list[str], refusal: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_URL", "http://127.0.0.1:9/v1")
    assert [line for line in refused(tmp_path, *mistakes) if refusal in line]
    assert refused(tmp_path, *mistakes, fix) == []


@pytest.mark.parametrize(
    ("variable", "value", "overrides"),
    [
        ("JUDGE_URL", "http://127.0.0.1:9/v1", [JUDGED, JUDGE, ANOTHER_JUDGE]),
        ("SERVING_URL", "http://127.0.0.1:9/v1", [ENDPOINT]),
        ("VLLM_PYTHON", sys.executable, ["evaluation.serving={kind: vllm}"]),
    ],
)
def test_an_address_that_is_missing_is_told_before_samples(
    variable: str, value: str, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    assert [line for line in refused(tmp_path, *overrides) if variable in line]
    monkeypatch.setenv(variable, value)
    assert refused(tmp_path, *overrides) == []


def test_a_model_too_large_here_may_be_served_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "this_machine", lambda: Machine(1_000_000, ()))
    monkeypatch.setenv("SERVING_URL", "http://127.0.0.1:9/v1")
    (refusal,) = refused(tmp_path)
    assert f"Set {ENDPOINT.replace('=', ' to ')}" in refusal
    assert refused(tmp_path, ENDPOINT) == []
