"""Which earlier training a step's time is taken from: the newest that did the same work on the same devices."""

import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.iteration import Iteration
from pipeline.core.storage import CheckpointRef, DatasetRef, ModelRef, Store
from pipeline.demo import MODEL_DIR
from pipeline.recipe import Accelerator, Compute, Lora, Rewards, Training, TrainingSettings
from pipeline.recipe.methods import DPO, GRPO, MethodName
from pipeline.training.account import measured_step_s
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import Goodput, Health, TrainingResult
from tests.contexts import context_of
from tests.pipeline.selection.test_choose import decide

BASE = ModelRef(uri=str(MODEL_DIR), digest="b")
DATA = DatasetRef(uri="d", rows=1, digest="d")
NOW = Iteration(id="now", number=0, model_name="m", champion=BASE, dataset=DATA, recipe_digest="r")
TRAINING, COMPUTE = Training(), Compute(nodes=2, processes=8)


def leave(store: Store, id: str, step_s: float, by: MethodName = "grpo", at: int = 0, **change: Any) -> Path:
    """The records of a training whose steps took `step_s`, but for a slow first one."""
    plan = TrainingPlan(
        iteration=id, decision=decide().model_copy(update={"method": by}), base=BASE, data=DATA, held_out=None,
        without_consent=0, method=TRAINING.method(by), training=TRAINING.without_methods(),
        rewards=Rewards(), nodes=2, processes=8, peak_tflops=989.0,
    ).model_copy(update=change)  # fmt: skip
    model = CheckpointRef(adapter=BASE, model=BASE, step=3)
    result = TrainingResult(
        iteration=id, plan_digest="p", checkpoint=model, seconds=1.0, attempts=1, resumed_from=(), health=Health(),
        metrics=tuple({"step": float(n), "seconds/step": s} for n, s in enumerate((9 * step_s, step_s, step_s))),
        goodput=Goodput(total_s=1.0, productive_s=1.0, badput_s={}), preemptions=(), engine="trl",
    )  # fmt: skip
    store.write(f"iterations/{id}/training/plan.json", plan)
    path = store.write(f"iterations/{id}/training/result.json", result)
    os.utime(path, (at, at))
    return path


def measured(store: Store, training: Training = TRAINING, compute: Compute = COMPUTE) -> dict[MethodName, float]:
    return measured_step_s(context_of(store, NOW, training=training, compute=compute))


def test_the_newest_of_each_method_counts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert measured(store) == {}
    leave(store, "a", 40.0, at=1)
    leave(store, "b", 50.0, at=3)
    leave(store, "c", 60.0, at=2)
    leave(store, "d", 7.0, by="dpo", at=1)
    leave(store, "now", 99.0, at=9)
    assert measured(store) == {"grpo": 50.0, "dpo": 7.0}


@pytest.mark.parametrize(
    "change",
    [
        {"processes": 4},
        {"peak_tflops": 312.0},
        {"training": TrainingSettings(lora=Lora(r=64))},
        {"base": ModelRef(uri="gone", digest="g")},
        {"method": None},
    ],
    ids=str,
)
def test_other_work_on_other_devices_says_nothing(tmp_path: Path, change: dict[str, Any]) -> None:
    leave(Store(tmp_path), "a", 40.0, **change)
    assert measured(Store(tmp_path)) == {}


def test_steps_and_rates_that_change_no_work_do_not_matter(tmp_path: Path) -> None:
    leave(Store(tmp_path), "a", 40.0)
    other = Training(grpo=GRPO(steps=7, learning_rate=1.0), dpo=DPO(batch_size=4))
    compute = COMPUTE.model_copy(update={"accelerator": Accelerator(usd_per_hour=99)})
    assert measured(Store(tmp_path), other, compute) == {"grpo": 40.0}
