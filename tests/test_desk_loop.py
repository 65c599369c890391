"""The desk's loop: no answer can be checked, thumbs and a judge speak, and what comes out is better to its users.

Utility is measured here alone; no stage may know it.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import dagster as dg
import pyarrow.parquet as pq
import pytest

from assets.graph import ASSETS
from assets.records import CHECKPOINT, PLAN, REPORT, REWARD_MODEL, SAMPLES, TRACES, VERDICT
from assets.resources import Deployment, records
from benchmarks.signals_world import worth
from jobs.retry import leavings, remove
from pipeline.core.storage import ModelRef, model_ref
from pipeline.demo.desk import MODEL_DIR
from pipeline.demo.desk.conversation import KINDS, Kind
from tests.fork_server import ForkServer
from tests.loop import ROOT, forked, instance, run_loop

pytestmark = [pytest.mark.variant, pytest.mark.slow, pytest.mark.timeout(1800)]

DESK = ROOT / "jobs" / "recipes" / "desk.yaml"
SHORT = (
    f"base_model.uri={MODEL_DIR}",
    "traces.source.days=2",
    "traces.source.traces_per_day=600",
    "traces.source.desk.thumbs=0.6",
    "traces.window_days=2",
    "rewards.reward_model.min_thumbs=150",
    "rewards.reward_model.min_users=60",
    "rewards.reward_model.min_auc=0.5",
    "samples.prompts=80",
    "selection.method=sft",
    "training.sft.steps=24",
    "training.validation.every_steps=12",
    "training.validation.prompts=8",
    "evaluation.suites.0.items=120",
    "evaluation.guard_margin=0.1",
    "evaluation.max_standard_error=0.2",
)


class DeskLoop(NamedTuple):
    settings: Deployment
    home: dg.DagsterInstance


@pytest.fixture(scope="module")
def loop(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeskLoop]:
    """The desk after one launch."""
    folder = tmp_path_factory.mktemp("desk")
    settings = Deployment(recipe_path=str(DESK), overrides=[*SHORT, f"data_root={folder / 'data'}"])
    with forked(fork_server), instance(folder / "home") as home:
        assert run_loop(settings, home).success
        yield DeskLoop(settings, home)


def hidden_utility(model: ModelRef) -> dict[Kind, float]:
    """Of two sampled answers to each of 60 held-out turns of each kind."""
    return {kind: worth(model, 4, 60, kind).mean for kind in KINDS}


def test_the_desk_improves_what_its_users_want(loop: DeskLoop) -> None:
    store, id = loop.settings.store(), loop.settings.latest().id
    assert PLAN.read(store, id).decision.method == "sft"
    candidate = CHECKPOINT.read(store, id).checkpoint.model
    before, after = hidden_utility(model_ref(MODEL_DIR)), hidden_utility(candidate)
    assert fmean(after.values()) > fmean(before.values()) + 0.03
    assert all(after[kind] > before[kind] - 0.08 for kind in KINDS), (before, after)


def test_the_desk_trains_on_calls_and_their_results(loop: DeskLoop) -> None:
    store, id = loop.settings.store(), loop.settings.latest().id
    plan = PLAN.read(store, id)
    assert plan.data is not None
    rows = pq.read_table(plan.data.uri).to_pylist()
    calls = sum("<tool_call>" in row["completion"] for row in rows)
    results = sum(any(message["role"] == "tool" for message in row["prompt"]) for row in rows)
    assert calls > 0.05 * len(rows) and results > 0.05 * len(rows)


def test_no_row_of_the_desk_has_a_reference_or_a_utility(loop: DeskLoop) -> None:
    store, id = loop.settings.store(), loop.settings.latest().id
    assert TRACES.read(store, id).admitted > 500
    assert PLAN.read(store, id).decision.evidence.verifiable_prompts == 0


def test_the_desks_reward_model_counts_beside_the_judge(loop: DeskLoop) -> None:
    store, id = loop.settings.store(), loop.settings.latest().id
    report, recipe = REWARD_MODEL.read(store, id), loop.settings.recipe()
    assert report.counts_beside(recipe.rewards.fresh), report.reasons
    assert "wrong-fact" in report.failed_probes  # of this, the judge alone speaks
    fresh = SAMPLES.read(store, id)
    assert fresh.labelled == fresh.drawn + fresh.remembered
    assert fresh.best_reward > fresh.mean_reward + 0.1


def test_the_desk_is_judged_by_another_judge_and_its_facts(loop: DeskLoop) -> None:
    store, id, recipe = loop.settings.store(), loop.settings.latest().id, loop.settings.recipe()
    assert recipe.gate_judge is not None and recipe.rewards.judge is not None
    assert recipe.gate_judge.model != recipe.rewards.judge.model
    [judged] = REPORT.read(store, id).judged
    assert judged.judge == recipe.gate_judge.model
    verdict = VERDICT.read(store, id)  # of so few items: it may be that nothing is shown
    assert any(reason.startswith(judged.suite) or f" {judged.suite}: " in reason for reason in verdict.reasons)


def test_the_desks_gate_asks_for_calls_and_after_their_results(loop: DeskLoop) -> None:
    store, id = loop.settings.store(), loop.settings.latest().id
    [measured] = REPORT.read(store, id).measurements
    assert measured.comparison is not None
    assert {"call", "result", "second"} < {row.name for row in measured.comparison.slices}


def test_the_desks_judges_end_with_their_steps(loop: DeskLoop) -> None:
    listed = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    assert "pipeline.demo.desk.judges" not in listed.stdout
    output: Path = loop.settings.store().path("rewards", "judge_server")
    assert any(output.iterdir())  # there was one


def test_samples_that_are_made_again_ask_nobody_twice(loop: DeskLoop) -> None:
    store, latest = loop.settings.store(), loop.settings.latest()
    first = SAMPLES.read(store, latest.id)
    remove(store, latest, "samples", list(leavings(store, latest, "samples")))
    resources = {"deployment": loop.settings, "io_manager": records}
    again = dg.materialize(ASSETS, selection=["samples"], instance=loop.home, resources=resources)
    assert again.success
    fresh = SAMPLES.read(store, latest.id)
    assert (fresh.drawn, fresh.remembered) == (0, first.drawn)
    assert fresh.dataset is not None and first.dataset is not None
    assert fresh.dataset.digest == first.dataset.digest
