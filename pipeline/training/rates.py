"""What the running trainer's steps take: seconds by name, tokens a second and the share of the devices' peak (MFU), by
PaLM's appendix B (arXiv 2204.02311); departures: a frozen weight needs no gradient of its own, and forward-only passes
count."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple


class Shape(NamedTuple):
    """What decides the operations of one token."""

    parameters: int
    """Weights that a token is multiplied with; an input embedding counts only where it is the output's as well."""
    trainable: int
    """... and of them, or of the adapters on them, those with a gradient."""
    layers: int
    """Of attention."""
    attention_width: int
    """Heads x head size."""

    def flops(self, length: float, trained: bool) -> float:
        """Operations of a token in sequences of `length` tokens: of its forward pass, and of the backward pass too."""
        attention = 4 * self.layers * self.attention_width * length
        return 4 * self.parameters + 2 * self.trainable + 3 * attention if trained else 2 * self.parameters + attention


BESIDE = ("lora_", "trainable_tokens_", "original_module")
"""In the names of weights that a token is not multiplied with once an adapter is merged."""


def shape_of(model: Any) -> Shape:
    """Read from a Hugging Face model, with its adapters or without: of a composite, from its text model. One without
    attention heads has no layers of attention."""
    config, head = model.config.get_text_config(), model.get_output_embeddings()
    embedding = model.get_input_embeddings().weight
    adapters = sum(_size(p) for name, p in model.named_parameters() if any(part in name for part in BESIDE))
    unused = adapters + (_size(embedding) if head is None or head.weight is not embedding else 0)
    heads = getattr(config, "num_attention_heads", None) or 0
    return Shape(
        parameters=sum(map(_size, model.parameters())) - unused,
        trainable=sum(_size(p) for p in model.parameters() if p.requires_grad),
        layers=getattr(config, "num_hidden_layers", 0) if heads else 0,
        attention_width=heads * (getattr(config, "head_dim", None) or config.hidden_size // heads) if heads else 0,
    )


def _size(weight: Any) -> int:
    """Elements: of a 4-bit weight two a byte."""
    return weight.numel() * (2 if type(weight).__name__ == "Params4bit" else 1)


class Tokens(NamedTuple):
    """Of one step, over all devices; prompts count where they are computed, padding never."""

    generated: float
    trained: float
    """Prompts and completions in the update."""
    scored: float = 0
    """Prompts and completions in forward passes for old and reference log-probabilities, once for each pass."""
    length: float = 0.0
    """Mean tokens of a sequence, prompt and completion."""


TokenCounter = Callable[[Mapping[str, float]], Tokens | None]
"""Takes a step's metrics; returns None for a step whose tokens are not known."""


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
