"""Preferences and demonstrations on day one, by the recipe alone, to a verdict; and beside the embedded production."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets.graph import ASSETS
from assets.records import CHECKPOINT, PLAN, PREFERENCES, REPORT
from assets.resources import records
from evals.bundle import verify
from pipeline.core.storage import DatasetRef
from pipeline.demo.task import mistaken_solution, problems
from pipeline.selection.preferences import PreferenceDataset
from pipeline.training.plan import TrainingPlan
from tests.loop import deployment, undrawn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("forking")]

DECLARED = "licence: MIT, consent: true, day: 2026-01-05"
SMALL = (
    "training.dpo.steps=4", "training.dpo.batch_size=16",
    "evaluation.suites.0.items=60", "evaluation.max_standard_error=0.2",
)  # fmt: skip


def write_ultrafeedback(path: Path, count: int) -> Path:
    """Four rated answers to each problem, as UltraFeedback has them, in any order."""
    dice = random.Random(0)
    rows: list[dict[str, Any]] = []
    for each in problems(101, "train", count):
        rated = [(each.solution, 4.75), (mistaken_solution(each), 1.5), ("I do not know.", 3.0), ("Many.", 2.0)]
        answers = [{"model": "m", "response": text, "fine-grained_score": score} for text, score in rated]
        rows.append({"source": "sums", "instruction": each.prompt, "completions": dice.sample(answers, 4)})
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def run(folder: Path, *overrides: str) -> tuple[PreferenceDataset, TrainingPlan]:
    """What was selected and planned; it was trained and got a verdict."""
    settings = deployment(folder / "data", [*SMALL, *overrides])
    with undrawn(), dg.DagsterInstance.ephemeral() as home:
        resources = {"deployment": settings, "io_manager": records}
        result = dg.materialize(ASSETS[:9], instance=home, resources=resources)
        verdict = result.output_for_node("gate_verdict")
    store, id = settings.store(), settings.latest().id
    assert verify(REPORT.read(store, id).bundle.uri, verdict.bundle_digest) == verdict
    assert CHECKPOINT.read(store, id).checkpoint.step == 4
    return PREFERENCES.read(store, id), PLAN.read(store, id)


def origins(dataset: DatasetRef | None) -> Counter[str]:
    assert dataset is not None
    return Counter(pq.read_table(dataset.uri, columns=["origin"])["origin"].to_pylist())


def test_published_ratings_are_dpo_on_day_one(tmp_path: Path) -> None:
    path = write_ultrafeedback(tmp_path / "train.parquet", 300)
    source = f"{{kind: pairs, name: uf, uri: {path}, preset: ultrafeedback, {DECLARED}}}"
    dataset, plan = run(tmp_path, f"traces.source={source}")
    assert (plan.decision.method, plan.decision.forced) == ("dpo", False)
    assert origins(dataset.pairs) == {"imports/uf (MIT)": dataset.pairs.rows}
    assert dataset.held_out_unverified is not None
    assert dataset.pairs.rows + dataset.held_out_unverified.rows == 300
