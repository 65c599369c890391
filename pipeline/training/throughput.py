"""Tokens a second and the share of the devices' peak that a training uses (MFU). Numbers only, no torch.

Operations a token, after PaLM's appendix B (arXiv 2204.02311) for N weights, L layers, W = heads x head size and
sequences of T tokens: 2 N + 4 L W T forward and twice that backward, so 6 N + 12 L W T to train. Departures: a frozen
weight needs no gradient of its own, so the 2 N of weight gradients are 2 times the weights that are trained (LoRA: 4 N
and a little in all); and forward-only passes count. As in PaLM, attention is not halved for the causal mask, and
recomputed activations count as time, not as work.

The split of a step's time: named spans that never overlap, because an inner one pauses the outer one.

Tokens and operations of the running trainer's steps, counted for `step_rates`.

Ranks do the same number of completions each, so the first rank counts its own and multiplies.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from transformers import Trainer

from pipeline.training.plan import TrainingPlan


class Shape(NamedTuple):
    """What decides the operations of one token."""

    parameters: int
    """Weights that a token is multiplied with; an input embedding counts only where it is the output's as well."""
    trainable: int
    """... and of them, or of the adapters on them, those with a gradient."""
    layers: int
    attention_width: int
    """Heads x head size."""


class Tokens(NamedTuple):
    """Of one step, over all devices; prompts count where they are computed, padding never."""

    generated: int
    trained: int
    """Prompts and completions in the update."""
    scored: int = 0
    """Prompts and completions in forward passes for old and reference log-probabilities, once for each pass."""
    length: float = 0.0
    """Mean tokens of a sequence, prompt and completion."""


def forward_flops(shape: Shape, length: float) -> float:
    """Operations of a token's forward pass in sequences of `length` tokens."""
    return 2 * shape.parameters + 4 * shape.layers * shape.attention_width * length


def training_flops(shape: Shape, length: float) -> float:
    """Operations of a token's forward and backward pass; 6 N + 12 L W T where every weight is trained."""
    attention = 12 * shape.layers * shape.attention_width * length
    return 4 * shape.parameters + 2 * shape.trainable + attention


def step_rates(
    tokens: Tokens, seconds: Mapping[str, float], shape: Shape, devices: int, peak_tflops: float | None
) -> dict[str, float]:
    """Metrics of one step. `seconds` by name as in the journal: `step`, `generate`, `logprobs`, `update`.

    `tokens_per_s`: trained tokens over the whole step. `generate_tokens_per_s`: generated tokens over the generation.
    `mfu`: operations of the update and of the log-probabilities over their seconds, all devices at their peak (dense,
    in the training's own precision). A rate whose time was not measured, or without tokens, is absent.
    """
    rates: dict[str, float] = {}
    if tokens.trained and (step_s := seconds.get("step", 0.0)) > 0:
        rates["tokens_per_s"] = tokens.trained / step_s
        rates["tokens_per_s_per_device"] = tokens.trained / step_s / devices
    if tokens.generated and (generate_s := seconds.get("generate", 0.0)) > 0:
        rates["generate_tokens_per_s"] = tokens.generated / generate_s
    if tokens.trained and peak_tflops and (update_s := seconds.get("update", 0.0)) > 0:
        done = tokens.trained * training_flops(shape, tokens.length)
        done += tokens.scored * forward_flops(shape, tokens.length)
        update_s += seconds.get("logprobs", 0.0)  # nothing where the update's own time has it, as in DPO
        rates["mfu"] = done / (update_s * peak_tflops * 1e12 * devices)
    return rates


def _batches(rows: Sequence[Mapping[str, float]]) -> list[list[Mapping[str, float]]]:
    """Rows by the generation that they share; each by itself where none generates."""
    shared = any(row.get("seconds/generate") for row in rows)
    batches: list[list[Mapping[str, float]]] = []
    for row in rows:
        if batches and shared and not row.get("seconds/generate"):
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


RATES = {
    "tokens_per_s": "seconds/step",
    "tokens_per_s_per_device": "seconds/step",
    "generate_tokens_per_s": "seconds/generate",
    "mfu": "seconds/update",
}
"""Each rate, and the seconds that it is over."""


def typical(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of a whole training's rows: seconds of an optimizer step, each rate over the time it is of, the most memory.

    The seconds are the median batch of generation's, over its optimizer steps: one of these draws it for all of them,
    and a row may stand for a whole batch (NeMo RL).
    """
    summary: dict[str, float] = {}
    batches = _batches([row for row in metrics if row.get("seconds/step", 0.0) > 0])
    if batches:
        begins = [batch[0].get("step", float(number)) for number, batch in enumerate(batches)]
        updates = [after - before for before, after in pairwise(begins)] or [float(len(batches[0]))]
        spent = [sum(row["seconds/step"] for row in batch) for batch in batches]
        summary["seconds/step"] = statistics.median(
            seconds / steps for seconds, steps in zip(spent, [*updates, updates[-1]], strict=False)
        )
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


class Clock:
    """Adds up seconds by name. `settle` is called at both ends of a span: on a GPU it waits for the work in flight."""

    def __init__(self, settle: Callable[[], None] = lambda: None) -> None:
        self.settle = settle
        self._spent: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def take(self) -> dict[str, float]:
        """Seconds by name since the last call."""
        spent, self._spent = self._spent, {}
        return spent

    def _turn(self) -> None:
        """Book the time since the last turn to the innermost open span."""
        self.settle()
        now = time.monotonic()
        if self._open:
            name = self._open[-1]
            self._spent[name] = self._spent.get(name, 0.0) + now - self._since
        self._since = now


class Rates:
    """Called once a step with its metrics and its seconds by name."""

    def __init__(self, plan: TrainingPlan, trainer: Trainer) -> None:
        self._plan, self._trainer = plan, trainer
        self._shape = shape_of(trainer.accelerator.unwrap_model(trainer.model))
        self._peak = None
        if torch.cuda.is_available():
            self._peak = peak_tflops(torch.cuda.get_device_name()) or plan.peak_tflops
        self._seen: float | None = None

    def __call__(self, metrics: Mapping[str, float], seconds: Mapping[str, float]) -> dict[str, float]:
        tokens = self._of_groups() if self._plan.algorithm.kind == "grpo" else self._of_pairs(metrics)
        if tokens is None:
            return {}
        return step_rates(tokens, seconds, self._shape, self._plan.world_size, self._peak)

    def _of_groups(self) -> Tokens:
        """What the GroupTrainer counted on this rank, over all ranks."""
        counted: dict[str, float] = self._trainer.take_counted()  # type: ignore[attr-defined]
        everywhere = {name: round(value * self._plan.world_size) for name, value in counted.items() if name != "length"}
        return Tokens(**everywhere, length=counted["length"])

    def _of_pairs(self, metrics: Mapping[str, float]) -> Tokens | None:
        """TRL's count of both sides of all pairs, gathered; the reference's pass scores each of them once."""
        now, before = metrics.get("num_tokens", 0.0), self._seen
        self._seen = now
        if before is None and metrics.get("step") != 1.0:
            return None  # resumed: what this step saw is not known
        new = now - (before or 0.0)
        algorithm = self._plan.algorithm
        assert algorithm.kind == "dpo"
        return Tokens(generated=0, trained=round(new), scored=round(new), length=new / (2 * algorithm.batch_size))


def shape_of(model: Any) -> Shape:
    """What decides the operations of a token, read from a Hugging Face model, with its adapters or without."""
    config = model.config
    embedding = _size(model.get_input_embeddings().weight)
    tied = bool(getattr(config, "tie_word_embeddings", False))
    adapters = sum(_size(p) for name, p in model.named_parameters() if "lora_" in name)
    whole = sum(map(_size, model.parameters())) - adapters
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Shape(
        parameters=whole - (0 if tied else embedding),
        trainable=sum(_size(p) for p in model.parameters() if p.requires_grad),
        layers=config.num_hidden_layers,
        attention_width=config.num_attention_heads * head,
    )


def _size(weight: Any) -> int:
    """Elements: of a ZeRO-3 shard those of the whole, of a 4-bit weight two a byte."""
    return getattr(weight, "ds_numel", None) or weight.numel() * (2 if type(weight).__name__ == "Params4bit" else 1)
