"""own.yaml with a model, traces and a suite of one's own, and no code: to a plan that the gate takes."""

import hashlib
from pathlib import Path

import dagster as dg
import pytest

from assets.graph import ASSETS
from assets.resources import Deployment, records
from tests.loop import undrawn
from tests.own import make_model, write_langfuse_export, write_suite

OWN = Path(__file__).parents[2] / "jobs" / "recipes" / "own.yaml"
SMALL = (
    "selection.min_prompts=50",
    "rewards.rules.min_chars=8",
    "compute.workers=1",
    "selection.max_principal_share=0.05",
)
"""What a few hundred short answers want instead of a month of a product's traffic."""


def recipe(root: Path, *overrides: str) -> Deployment:
    source, suite = write_langfuse_export(root / "my traces"), write_suite(root / "my suites" / "suite.jsonl", 200)
    digest = hashlib.sha256(suite.read_bytes()).hexdigest()
    places = [f"data_root='{root / 'my data'}'", f"base_model.uri='{make_model(root / 'my chat model')}'"]
    places += [f"evaluation.suites.0.path='{suite}'", f"evaluation.suites.0.sha256={digest}"]
    places += [f"traces.source={{kind: langfuse_export, uri: '{source}'}}", *SMALL, *overrides]
    return Deployment(recipe_path=str(OWN), overrides=places)


@pytest.mark.slow
def test_own_traces_reach_a_plan_that_the_gate_takes(tmp_path: Path) -> None:
    settings = recipe(tmp_path, "training.grpo.generation=transformers", "evaluation.guard_margin=0.05")
    stages = ASSETS[:6]
    with undrawn(), dg.DagsterInstance.ephemeral() as home:
        resources = {"deployment": settings, "io_manager": records}
        result = dg.materialize(stages, instance=home, resources=resources, raise_on_error=False)
        checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
        labels = result.output_for_node("reward_labels")
    plan = settings.store().path("iterations", settings.latest().id, "training", "plan.json")
    assert labels.components["correct"].count == labels.labelled > 500
    assert '"method": "grpo"' in plan.read_text()
    assert checks["launchable"].passed, checks["launchable"].description
