"""The loop over a prompt set, to the plan of a training: problems and answers, and nobody but the champion to try."""

import json
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest

from assets.graph import ASSETS
from assets.records import LABELS, PLAN, PREFERENCES, SAMPLES
from assets.resources import records
from pipeline.core import layout
from pipeline.demo.suite import suite_text
from pipeline.demo.task import problems
from pipeline.recipe.suites import ItemsSuite
from tests.loop import deployment, instance

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STAGES = ("traces", "reward_labels", "reward_model", "samples", "preference_dataset", "training_plan")


def write_set(path: Path, leaked: str) -> Path:
    """Arithmetic problems as a published set has them, one of which the suite asks."""
    rows = [{"question": each.prompt, "answer": each.solution} for each in problems(11, "train", 250)]
    rows.append({"question": leaked, "answer": "#### 1"})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.variant
def test_a_prompt_set_is_answered_once_and_planned_for_grpo(tmp_path: Path) -> None:
    evaluation = deployment(tmp_path / "data").recipe().evaluation
    (suite,) = evaluation.suites
    assert isinstance(suite, ItemsSuite)
    leaked = json.loads(suite_text(suite, evaluation.seed).splitlines()[0])["messages"][0]["content"]
    path = write_set(tmp_path / "set.jsonl", leaked)
    source = f"{{kind: prompts, uri: '{path}', licence: own, consent: true, day: 2026-01-05}}"
    drawn = "{prompts: 120, per_prompt: 4, max_completion_tokens: 32}"
    settings = deployment(tmp_path / "data", (f"traces.source={source}", f"samples={drawn}"))

    def launch(home: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
        resources = {"deployment": settings, "io_manager": records}
        return dg.materialize(
            ASSETS, instance=home, resources=resources, selection=[dg.AssetKey(name) for name in STAGES]
        )

    with instance(tmp_path / "home") as home:
        assert launch(home).success
        store, id = settings.store(), settings.latest().id
        labels, fresh, dataset = (each.read(store, id) for each in (LABELS, SAMPLES, PREFERENCES))
        plan = PLAN.read(store, id)
        assert (labels.labelled, labels.unlabelled, labels.coverage) == (0, {"unanswered": 251}, 1.0)
        assert (fresh.prompts, fresh.drawn, fresh.remembered) == (120, 480, 0)
        assert dataset.contamination.hits == 1
        assert plan.decision.method == "grpo" and not plan.decision.forced, plan.decision.reasons
        assert plan.data is not None and fresh.dataset is not None
        asked = set(pq.read_table(fresh.dataset.uri)["prompt"].to_pylist())
        trained = pq.read_table(plan.data.uri)["prompt"].to_pylist()
        assert {json.dumps(prompt, ensure_ascii=False) for prompt in trained} <= asked
        assert not any(leaked in prompt for prompt in asked)
        store.path(settings.latest().path(layout.FRESH)).unlink()
        store.path(settings.latest().path(layout.PREFERENCES)).unlink()
        store.path(settings.latest().path(layout.PLAN)).unlink()
        assert launch(home).success
        assert settings.latest().id == id
        assert (SAMPLES.read(store, id).drawn, SAMPLES.read(store, id).remembered) == (0, 480)
        assert PLAN.read(store, id).digest() == plan.digest()
