"""A cloud product's open questions through selection and the dry run of the recipes for spot H200s."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

from k8s.launch import check_launch
from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.recipe import Recipe, load
from pipeline.recipe.traces import ExportSource
from pipeline.rewards.label import label_traces
from pipeline.selection.consent import consented
from pipeline.selection.cost import expect
from pipeline.selection.noise import trust_in
from pipeline.selection.preferences import PreferenceDataset, build
from pipeline.selection.trainable import HeldApart
from pipeline.traces.context import IterationContext
from pipeline.traces.lake import local_lake
from pipeline.training.plan import TrainingPlan, plan_training
from tests.cloud_questions import QUESTIONS
from tests.pipeline.rewards.conftest import call
from tests.pipeline.traces.conftest import govern, score, write

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "jobs" / "recipes"
PARAMETERS = 32_500_000_000


class Selected(NamedTuple):
    dataset: PreferenceDataset
    plan: TrainingPlan
    refusals: list[str]
    """Of the dry run; none where nothing is trained."""


def select(root: Path, recipe: Recipe, checkable: bool) -> Selected:
    """What the stages up to the plan make of the questions, and what is said before a launch."""
    rows: list[dict[str, Any]] = []
    scores: list[dict[str, Any]] = []
    for number, each in enumerate(QUESTIONS):
        for place, (answer, thumb) in enumerate(((each.helpful, 1.0), (each.useless, 0.0))):
            id = 2 * number + place + 1
            asked = {"input": [{"role": "user", "content": each.question}]}
            marked = f"{answer}\n#### {answer.rpartition(' ')[2]}"  # where a verifier finds the answer
            rows.append(call(id, marked, each.figure, **asked) if checkable else call(id, answer, **asked))
            scores.append(score(id, id, thumb))
    write(root / "export", "observations_v2/2026-01-05.jsonl", rows)
    write(root / "export", "scores/2026-01-05.jsonl", scores)
    store, source = Store(root / "data"), ExportSource(kind="langfuse_export", uri=str(root / "export"))
    iteration = govern(store, source, source.uri).iteration
    work = IterationContext(store, recipe, local_lake(store), lambda line: None, "", iteration)
    labels = label_traces(work, None, ())
    agreed = partial(consented, store, work.lake, iteration.dataset)
    dataset = build(work, labels.dataset, HeldApart({}), agreed, trust_in(labels))
    expected = expect(
        dataset.evidence, recipe.training, recipe.compute.accelerator, PARAMETERS, recipe.compute.devices
    )  # fmt: skip
    plan = plan_training(work, dataset, expected, agreed)
    if plan.method is None:
        return Selected(dataset, plan, [])
    return Selected(
        dataset, plan, check_launch(recipe, plan, Path(recipe.data_root, iteration.path(layout.PLAN))).refusals
    )


def recipe(name: str) -> Recipe:
    return load(RECIPES / f"spot_h200_{name}.yaml")


@pytest.mark.variant
def test_thumbs_on_open_questions_are_planned_for_dpo(tmp_path: Path) -> None:
    selected = select(tmp_path, recipe("dpo"), checkable=False)
    assert (selected.plan.decision.method, selected.plan.decision.forced) == ("dpo", True)
    pairs = pq.read_table(selected.dataset.pairs.uri).to_pylist()
    held_out = pq.read_table(selected.dataset.held_out_pairs.uri).to_pylist()
    by_question = {each.question: each for each in QUESTIONS}
    assert len(pairs) + len(held_out) == len(QUESTIONS) and len(pairs) >= 9
    for pair in [*pairs, *held_out]:
        each = by_question[pair["prompt"][-1]["content"]]
        assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == (each.helpful, each.useless)
    assert selected.plan.data is not None and selected.plan.data.rows > 0
    assert "preference pairs" in str(selected.plan.decision.lacks["dpo"]), "forced on 12 of the 50,000 that it wants"
    assert selected.refusals == []


@pytest.mark.variant
def test_open_questions_that_nobody_can_check_give_no_grpo(tmp_path: Path) -> None:
    selected = select(tmp_path, recipe("grpo"), checkable=False)
    assert selected.plan.decision.method == "none" and selected.plan.data is None
    assert "no prompts on the frontier" in selected.plan.decision.reasons[0]
    assert any("references for another" in line for line in selected.plan.decision.would_change)


def test_open_questions_with_a_figure_are_planned_for_grpo(tmp_path: Path) -> None:
    selected = select(tmp_path, recipe("grpo"), checkable=True)
    assert (selected.plan.decision.method, selected.plan.decision.forced) == ("grpo", True)
    prompts = pq.read_table(selected.dataset.prompts.uri).to_pylist()
    assert {(row["pass_rate"], row["verifier"]) for row in prompts} == {(0.5, "math")}
    assert len(prompts) + selected.dataset.held_out_prompts.rows == len(QUESTIONS)
    assert selected.refusals == []


@pytest.mark.variant
@pytest.mark.parametrize("name", ["dpo", "grpo"])
def test_dry_run_refuses_what_it_may_not_spend(tmp_path: Path, name: str) -> None:
    chosen = recipe(name)
    poor = chosen.model_copy(update={"compute": chosen.compute.model_copy(update={"budget_usd": 1.0})})
    (refusal,) = select(tmp_path, poor, checkable=True).refusals
    assert "budget" in refusal
