"""Tokens a second and the share of the devices' peak (MFU), by PaLM's appendix B (arXiv 2204.02311); departures: a
frozen weight needs no gradient of its own, and forward-only passes count. And what earlier steps took."""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from pipeline.core import layout
from pipeline.recipe.methods import METHODS, MethodName
from pipeline.recipe.section import Length, Observer, Operational, Section, settings
from pipeline.selection.cost import parameters
from pipeline.traces.context import IterationContext
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult


class Shape(NamedTuple):
    """What decides the operations of one token."""

    parameters: int
    """Weights that a token is multiplied with; an input embedding counts only where it is the output's as well."""
    trainable: int
    """... and of them, or of the adapters on them, those with a gradient."""
    layers: int
    attention_width: int
    """Heads x head size."""

    def flops(self, length: float, trained: bool) -> float:
        """Operations of a token in sequences of `length` tokens: of its forward pass, and of the backward pass too."""
        attention = 4 * self.layers * self.attention_width * length
        return 4 * self.parameters + 2 * self.trainable + 3 * attention if trained else 2 * self.parameters + attention


class Tokens(NamedTuple):
    """Of one step, over all devices; prompts count where they are computed, padding never."""

    generated: float
    trained: float
    """Prompts and completions in the update."""
    scored: float = 0
    """Prompts and completions in forward passes for old and reference log-probabilities, once for each pass."""
    length: float = 0.0
    """Mean tokens of a sequence, prompt and completion."""


def step_rates(
    tokens: Tokens, seconds: Mapping[str, float], shape: Shape, devices: int, peak_tflops: float | None
) -> dict[str, float]:
    """Metrics of one step. `seconds` by name as in the journal: `step`, `generate`, `logprobs`, `update`.
    `tokens_per_s`: trained tokens over the whole step. `generate_tokens_per_s`: generated tokens over the generation.
    `mfu`: operations of the update and of the log-probabilities over their seconds, all devices at their peak (dense,
    in the training's own precision). A rate whose time was not measured, or without tokens, is absent."""
    rates: dict[str, float] = {}
    if tokens.trained and (step_s := seconds.get("step", 0.0)) > 0:
        rates["tokens_per_s"] = tokens.trained / step_s
        rates["tokens_per_s_per_device"] = tokens.trained / step_s / devices
    if tokens.generated and (generate_s := seconds.get("generate", 0.0)) > 0:
        rates["generate_tokens_per_s"] = tokens.generated / generate_s
    if tokens.trained and peak_tflops and (update_s := seconds.get("update", 0.0)) > 0:
        done = tokens.trained * shape.flops(tokens.length, True) + tokens.scored * shape.flops(tokens.length, False)
        update_s += seconds.get("logprobs", 0.0)  # nothing where the update's own time has it, as in DPO
        rates["mfu"] = done / (update_s * peak_tflops * 1e12 * devices)
    return rates


RATES = {
    "tokens_per_s": "seconds/step",
    "tokens_per_s_per_device": "seconds/step",
    "generate_tokens_per_s": "seconds/generate",
    "mfu": "seconds/update",
}
"""Each rate, and the seconds that it is over."""


def typical(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of a whole training's rows: seconds of an optimizer step, each rate over the time it is of, the most memory. The
    seconds are the median batch of generation's, over its optimizer steps: one of these draws it for all of them, and a
    row may stand for a whole batch (NeMo RL)."""
    summary: dict[str, float] = {}
    rows = [row for row in metrics if row.get("seconds/step", 0.0) > 0]
    draws = any(row.get("seconds/generate") for row in rows)
    batches: list[list[Mapping[str, float]]] = []
    for row in rows:
        if not batches or not draws or row.get("seconds/generate"):
            batches.append([])
        batches[-1].append(row)
    if batches:
        begins = [batch[0].get("step", float(number)) for number, batch in enumerate(batches)]
        updates = [after - before for before, after in pairwise(begins)] or [float(len(batches[0]))]
        spent = [sum(row["seconds/step"] for row in batch) for batch in batches]
        steps_s = [seconds / steps for seconds, steps in zip(spent, [*updates, updates[-1]], strict=False)]
        summary["seconds/step"] = statistics.median(steps_s)
    for name, of in RATES.items():
        over = [(row[name], row.get(of, 0.0)) for row in metrics if math.isfinite(row.get(name, math.nan))]
        if (seconds := sum(each for _, each in over)) > 0:
            summary[name] = sum(rate * each for rate, each in over) / seconds
    memory = [row["memory_mb"] for row in metrics if "memory_mb" in row]
    return {**summary, "memory_mb": max(memory)} if memory else summary


PEAK_TFLOPS = (
    (("B200",), 2250.0),
    (("H200", "NVL"), 835.0),
    (("H200",), 989.0),
    (("H100", "PCIe"), 756.0),
    (("H100", "NVL"), 835.0),
    (("H100",), 989.0),
    (("A100",), 312.0),
    (("L40S",), 362.0),
    (("L4",), 121.0),
    (("A10G",), 70.0),
)
"""Dense bf16 of one device by the words of its CUDA name, from NVIDIA's data sheets; they often print twice as much,
which is with sparsity."""


def peak_tflops(device_name: str) -> float | None:
    """Of a device by torch.cuda.get_device_name; None for one that is not in the table, and for a slice of one."""
    words = {word.upper() for word in re.split(r"[^A-Za-z0-9]+", device_name)}
    if "MIG" in words:
        return None
    return next((peak for named, peak in PEAK_TFLOPS if words.issuperset(map(str.upper, named))), None)


def measured_step_s(context: IterationContext) -> dict[MethodName, float]:
    """Median seconds of a step by method, of the newest other iteration whose steps did the same work. The same: method
    and its settings, adapters, engine and its spread, number and peak of the devices, and the number of the base
    model's weights. A record that cannot be read, or whose base is gone, is passed over."""
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

    def deciding(*sections: Section) -> list[object]:
        return [settings(section, Operational, Observer, Length) for section in sections]

    return (
        (plan.nodes, plan.processes, plan.peak_tflops)
        == (compute.nodes, compute.processes, compute.accelerator.peak_tflops)
        and deciding(plan.training, method) == deciding(training.without_methods(), training.method(method.kind))
        and parameters(plan.base.uri) == parameters(context.iteration.champion.uri)
    )
