"""What a step of this deployment's trainings has taken, for the estimate of the next one's cost."""

from __future__ import annotations

from pipeline.core import layout
from pipeline.recipe.methods import METHODS, MethodName
from pipeline.recipe.section import Length, Observer, Operational, Section, settings
from pipeline.selection.cost import parameters
from pipeline.traces.context import IterationContext
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult
from pipeline.training.throughput import typical


def measured_step_s(context: IterationContext) -> dict[MethodName, float]:
    """Median seconds of a step by method, of the newest other iteration whose steps did the same work.

    The same: method and its settings, adapters, engine and its spread, number and peak of the devices, and the number
    of the base model's weights. A record that cannot be read, or whose base is gone, is passed over.
    """
    store = context.store
    step_times: dict[MethodName, float] = {}
    results = store.path(layout.ITERATIONS).glob(f"*/{layout.RESULT}")
    for path in sorted(results, key=lambda path: path.stat().st_mtime, reverse=True):
        id = path.parent.parent.name
        if id == context.iteration.id or len(step_times) == len(METHODS):
            continue
        try:
            plan = store.read(layout.iteration(id, layout.PLAN), TrainingPlan)
            if plan is None or plan.method is None or not _same_work(plan, context):
                continue
            result = store.read(layout.iteration(id, layout.RESULT), TrainingResult)
        except ValueError:
            continue
        step_s = typical(result.metrics).get("seconds/step") if result else None
        if step_s is not None:
            step_times.setdefault(plan.method.kind, step_s)
    return step_times


def _same_work(plan: TrainingPlan, context: IterationContext) -> bool:
    """Whether the iteration would step as this plan did, if it trained by the same method."""
    method, training, compute = plan.trained_by(), context.recipe.training, context.recipe.compute
    return (
        (plan.nodes, plan.processes, plan.peak_tflops)
        == (compute.nodes, compute.processes, compute.accelerator.peak_tflops)
        and _settings(plan.training, method) == _settings(training.without_methods(), training.method(method.kind))
        and parameters(plan.base.uri) == parameters(context.iteration.champion.uri)
    )


def _settings(*sections: Section) -> list[object]:
    """Those that a step's time depends on."""
    return [settings(section, Operational, Observer, Length) for section in sections]
