"""What a step of this deployment's trainings has taken, for the estimate of the next one's cost."""

from __future__ import annotations

from typing import Literal

from pipeline import layout
from pipeline.iteration import Iteration
from pipeline.recipe import Compute, Training
from pipeline.recipe.section import Length, Observer, Operational, settings
from pipeline.selection.cost import parameters
from pipeline.storage import Store
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult
from pipeline.training.throughput import typical

METHODS: tuple[Literal["grpo", "dpo"], ...] = ("grpo", "dpo")


def measured_step_s(store: Store, iteration: Iteration, training: Training, compute: Compute) -> dict[str, float]:
    """Median seconds of a step by method, of the newest other iteration whose steps did the same work.

    The same: method and its settings, adapters, engine and its spread, number and peak of the devices, and the number
    of the base model's weights. A record that cannot be read, or whose base is gone, is passed over.
    """
    step_times: dict[str, float] = {}
    results = store.path(layout.ITERATIONS).glob(f"*/{layout.RESULT}")
    for path in sorted(results, key=lambda path: path.stat().st_mtime, reverse=True):
        id = path.parent.parent.name
        if id == iteration.id or len(step_times) == len(METHODS):
            continue
        try:
            plan = store.read(layout.iteration(id, layout.PLAN), TrainingPlan)
            if plan is None or plan.decision.method in step_times or not _same(plan, iteration, training, compute):
                continue
            result = store.read(layout.iteration(id, layout.RESULT), TrainingResult)
        except ValueError:
            continue
        step_s = typical(result.metrics).get("seconds/step") if result else None
        if step_s is not None:
            step_times[plan.decision.method] = step_s
    return step_times


def _same(plan: TrainingPlan, iteration: Iteration, training: Training, compute: Compute) -> bool:
    method = plan.decision.method
    return (
        method != "none"
        and (plan.nodes, plan.processes, plan.peak_tflops)
        == (compute.nodes, compute.processes, compute.accelerator.peak_tflops)
        and _work(plan.training, method) == _work(training, method)
        and parameters(plan.base.uri) == parameters(iteration.champion.uri)
    )


def _work(training: Training, method: Literal["grpo", "dpo"]) -> dict[str, object]:
    """The settings that a step's time depends on."""
    common = settings(training, Operational, Observer, Length)
    return {**common, "grpo": None, "dpo": None, "method": common[method]}
