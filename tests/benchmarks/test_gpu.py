"""The GPU benchmark where there is no GPU: its shapes, its plans and its sums."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.gpu import MEMORY, PARTLY_RIGHT, PARTS, SPEED, WARM_UP, Run, figures
from benchmarks.gpu_data import write_plan
from pipeline.core.locations import Document
from pipeline.demo import MODEL_DIR
from pipeline.recipe import Accelerator, Checkpoints
from pipeline.training.plan import TrainingPlan


@pytest.mark.parametrize("run", [*SPEED, *MEMORY], ids=lambda run: run.name)
def test_a_plan_has_rows_for_every_step(tmp_path: Path, run: Run) -> None:
    h200 = Accelerator(name="NVIDIA H200", peak_tflops=989.0)
    path = write_plan(tmp_path, MODEL_DIR, run.settings, h200, PARTLY_RIGHT, 8, Checkpoints(), **run.training)
    plan = TrainingPlan.model_validate_json(path.read_text(), context=Document(path))
    assert plan.method == run.settings
    assert plan.data is not None
    rows = pq.read_table(plan.data.uri).to_pylist()
    assert len(rows) == run.settings.scheduled_rows
    assert min(len(row["prompt"][0]["content"]) for row in rows) > 300, "eight problems to a row"


def test_figures_leave_the_warm_up_out() -> None:
    slow = {"seconds/step": 100.0, "seconds/generate": 99.0, "tokens_per_s": 1.0, "memory_mb": 9.0}
    usual = {
        "seconds/step": 10.0, "seconds/generate": 4.0, "seconds/reward": 1.0, "seconds/logprobs": 2.0,
        "seconds/update": 2.5, "tokens_per_s": 500.0, "mfu": 0.2, "memory_mb": 2048.0,
    }  # fmt: skip
    actual = figures([*[slow] * WARM_UP, *[usual] * 3, {"held_out/accuracy": 0.5}])
    assert (actual["step"], actual["tokens_per_s"], actual["mfu"], actual["memory_mb"]) == (10.0, 500.0, 0.2, 2048.0)
    assert actual["other"] == pytest.approx(0.5)
    assert sum(actual[part] for part in (*PARTS, "other")) == pytest.approx(actual["step"])
