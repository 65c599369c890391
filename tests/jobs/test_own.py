"""own.yaml with a model and traces of one's own: as far as the gate, which it refuses before the training."""

from pathlib import Path

import dagster as dg
import pytest

from assets.resources import Deployment, records
from assets.rewards import reward_labels
from assets.selection import preference_dataset, training_plan
from assets.traces import traces
from tests.loop import instance
from tests.own import make_model, write_langfuse_export, write_openai_logs

OWN = Path(__file__).parents[2] / "jobs" / "recipes" / "own.yaml"
WRITERS = {"openai_logs": write_openai_logs, "langfuse_export": write_langfuse_export}
SMALL = (
    "selection.min_prompts=50",
    "rewards.rules.min_chars=8",
    "compute.workers=1",
    "selection.max_principal_share=0.05",
)
"""What a few hundred short answers want instead of a month of a product's traffic."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITERS)
def test_own_traces_reach_a_plan_that_the_gate_refuses(tmp_path: Path, kind: str) -> None:
    source = WRITERS[kind](tmp_path / "my traces")
    model = make_model(tmp_path / "my chat model")
    places = [f"data_root='{tmp_path / 'my data'}'", f"base_model.uri='{model}'"]
    overrides = [*places, f"traces.source={{kind: {kind}, uri: '{source}'}}", *SMALL]
    settings = Deployment(recipe_path=str(OWN), overrides=overrides)
    resources = {"deployment": settings, "io_manager": records}
    stages = [traces, reward_labels, preference_dataset, training_plan]
    with instance(tmp_path / "dagster") as home:
        result = dg.materialize(stages, instance=home, resources=resources, raise_on_error=False)
        checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
        labels = result.output_for_node("reward_labels")
    plan = settings.store().path("iterations", settings.latest().id, "training", "plan.json")
    assert labels.profiles["verified"] == labels.labelled > 500
    assert '"method": "grpo"' in plan.read_text()
    assert not checks["launchable"].passed
    assert "asks what the embedded model was made for" in str(checks["launchable"].description)
