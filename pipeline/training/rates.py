"""What the running trainer's steps take: seconds by name, and tokens and operations for `throughput.step_rates`."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import Trainer

from pipeline.training.methods import MethodTrainer
from pipeline.training.throughput import Shape, peak_tflops, step_rates


class Rates:
    """Called once a step with its metrics and its seconds by name."""

    def __init__(self, builder: MethodTrainer, trainer: Trainer) -> None:
        plan = builder.setup.plan
        self._shape, self._devices = shape_of(trainer.accelerator.unwrap_model(trainer.model)), plan.world_size
        self._peak = None
        if torch.cuda.is_available():
            self._peak = peak_tflops(torch.cuda.get_device_name()) or plan.peak_tflops
        self._count = builder.token_counter(trainer)

    def __call__(self, metrics: Mapping[str, float], seconds: Mapping[str, float]) -> dict[str, float]:
        counted = self._count(metrics)
        return step_rates(counted, seconds, self._shape, self._devices, self._peak) if counted else {}


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


class Clock:
    """Adds up seconds by name; an inner span pauses the outer one. `settle` is called at both ends of a span: on a GPU
    it waits for the work in flight."""

    def __init__(self, settle: Callable[[], None] = lambda: None) -> None:
        self.settle = settle
        self._spent: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        self._book()
        self._open.append(name)
        try:
            yield
        finally:
            self._book()
            self._open.pop()

    def take(self) -> dict[str, float]:
        """Seconds by name since the last call."""
        spent, self._spent = self._spent, {}
        return spent

    def _book(self) -> None:
        """Book the time since the last call to the innermost open span."""
        self.settle()
        now = time.monotonic()
        if self._open:
            name = self._open[-1]
            self._spent[name] = self._spent.get(name, 0.0) + now - self._since
        self._since = now
