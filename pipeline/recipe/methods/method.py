"""A training method as an object: its settings in the recipe, the evidence and rows it needs, the trainer it makes.

Owns what the stages ask a method, so that none of them knows which methods there are. A method's module imports the
trainer's library inside `arguments` and `trainer`: the recipe is read where there is no torch. What those two need of
the training process comes through `TrainerSetup`, which the training stage implements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import PositiveFloat, PositiveInt

from pipeline.recipe.section import Length, Section

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback, TrainingArguments

EvidenceKey = Literal[
    "coverage", "verifiable", "frontier", "zero_variance", "pairs", "noise",
    "thumbs", "rarer_thumb", "signal", "winners", "scorer",
]  # fmt: skip
"""What a method may ask of the labelled set (pipeline/selection/checks.py holds each against its threshold)."""
Material = Literal["policy_prompts", "pairs", "contrasted_thumbs", "winners"]
"""Counts of the evidence (pipeline/selection/evidence.py)."""
TableName = Literal["prompts", "pairs", "thumbs", "winners"]
"""Tables of the preference dataset."""
Row = Mapping[str, Any]

GENERATION_UTILISATION = 0.1
"""Utilisation of a device while it generates, as a share of that while it trains."""

DECIDED = frozenset(
    [
        "output_dir",
        "seed",
        "data_seed",
        "num_train_epochs",
        "max_steps",
        "learning_rate",
        "beta",
        "loss_type",
        "gradient_accumulation_steps",
        "save_strategy",
        "save_steps",
        "save_total_limit",
        "save_only_model",
        "load_best_model_at_end",
        "logging_strategy",
        "logging_steps",
        "logging_nan_inf_filter",
        "report_to",
        "eval_strategy",
        "eval_steps",
        "fsdp",
        "fsdp_config",
        "deepspeed",
        "ddp_backend",
        "enable_jit_checkpoint",
        "ignore_data_skip",
        "resume_from_checkpoint",
        "push_to_hub",
        "log_completions",
    ]
)
"""What the recipe's own fields, or what exact resume rests on, decide in every TRL config."""


def refuse_decided(trainer_args: Mapping[str, Any], decided: frozenset[str]) -> None:
    """Raise ValueError where `trainer_args` sets what is decided elsewhere."""
    if taken := sorted(decided & trainer_args.keys()):
        raise ValueError(
            f"trainer_args: {', '.join(taken)} would override what the recipe or exact resume decides. Change the "
            "recipe's own field, and leave them out."
        )


class TrainingWork(NamedTuple):
    """What a whole training takes, before any device is known; tokens are of all its samples."""

    samples: int
    """Completions or pairs over all steps."""
    rows: int
    """Rows of its table over all steps."""
    generated: float
    trained: float
    flops_per_parameter: float
    """At the utilisation of training: generation is slower and counts by that much more."""


class BatchReward(Protocol):
    """The pipeline's own reward for fresh completions, as TRL calls it and as a trainer may ask it before."""

    last: list[float | None]
    """The rewards of the last batch that TRL asked for."""

    def __call__(self, *args: Any, **kwargs: Any) -> list[float | None]: ...

    def rewards(
        self,
        completions: Sequence[str],
        rows: Sequence[Row],
        ids: Sequence[Sequence[int]],
        turns: Sequence[Sequence[Row]] = (),
    ) -> list[float | None]:
        """Of one completion for each row, with its token ids; None where the check could not tell. `turns`: messages
        between each prompt and its completion, as tools' calls and results."""
        ...


class TrainerSetup(Protocol):
    """The training process as a method sees it."""

    @property
    def reward(self) -> BatchReward: ...

    def shared_arguments(self) -> dict[str, Any]:
        """Arguments of every TRL config: one epoch over the plan's rows in their order, exact under resume."""
        ...

    def batch_arguments(self, trainer_args: Mapping[str, Any], examples: int) -> dict[str, int]:
        """A step's examples over processes and micro-batches. Raises ValueError when they do not divide."""
        ...

    def model_and_tokenizer(self) -> tuple[Any, Any]: ...

    def lora_config(self) -> Any: ...

    def rows(self, columns: Sequence[str]) -> Any:
        """The plan's rows as a datasets.Dataset, in the order of the steps."""
        ...

    def context(self) -> int | None:
        """Tokens that the base model can attend to; None where its configuration does not say."""
        ...

    def stop_ids(self) -> list[int]:
        """Tokens that end an answer of the base model."""
        ...

    def span(self, name: str) -> AbstractContextManager[None]:
        """Books the time inside to `name`, as part of the step's seconds."""
        ...

    def rollout(self) -> Callable[..., dict[str, Any]] | None:
        """TRL's `rollout_func` for completions that call tools; None: TRL's own generation. Raises ValueError where the
        base model's chat template does not go with it."""
        ...


class Method(Section):
    """The settings of a method, and what it answers to the stages. Class facts first, then what settings decide."""

    title: ClassVar[str]
    """How people read it."""
    needs: ClassVar[tuple[EvidenceKey, ...]]
    """Evidence that has to hold."""
    forced_on_scores: ClassVar[bool] = False
    """Where the recipe forces it, it may train on completions that no reference can check, only scorers."""
    material: ClassVar[Material]
    """The count in the evidence without which it cannot run at all."""
    material_name: ClassVar[str]
    table: ClassVar[TableName]
    """The table of the preference dataset that its rows come from."""
    columns: ClassVar[tuple[str, ...]]
    """Columns of that table that the trainer reads."""

    steps: Annotated[PositiveInt, Length]
    """Optimizer steps."""
    learning_rate: Annotated[PositiveFloat, Length]
    """At the first step; it falls linearly to 0."""
    trainer_args: dict[str, Any]
    """Anything else that the trainer's config takes."""

    @property
    def keeps_reference(self) -> bool:
        """Whether its trainer keeps the base model beside a policy without an adapter."""
        return False

    @property
    def updates_per_batch(self) -> int:
        """Optimizer steps between two states that a training can resume from."""
        return 1

    def batches_in(self, steps: int) -> int:
        """Batches between two such states in so many steps, the last one whole."""
        return -(-steps // self.updates_per_batch)

    @property
    def group_size(self) -> int | None:
        """Fresh completions of one prompt that are compared with each other; None where none are drawn."""
        return None

    @property
    def completion_tokens(self) -> int | None:
        """Longest fresh completion; None where none are drawn."""
        return None

    @property
    def drawn_by(self) -> str | None:
        """Who draws its completions; None where none are drawn."""
        return None

    @property
    def examples_per_update(self) -> int:
        """Completions or pairs of one optimizer step."""
        raise NotImplementedError

    @property
    def scheduled_rows(self) -> int:
        """Rows of its table over all steps."""
        raise NotImplementedError

    @property
    def answer_kl_stop(self) -> float | None:
        """KL to the base model in nats an answer, above which the training is stopped; None: no such limit."""
        return None

    @property
    def packages(self) -> Mapping[str, str]:
        """Packages that its trainer needs beside those of every training: name to what to set where it is absent."""
        return {}

    def usable(self, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """The rows of its table that the schedule goes through; the table has the most instructive first. Raises
        ValueError for rows that teach nothing."""
        return rows

    def work(self, prompt_tokens: float, completion_tokens: float) -> TrainingWork:
        """What the training takes, at the mean lengths of the labelled set."""
        raise NotImplementedError

    def arguments(self, setup: TrainerSetup) -> TrainingArguments:
        """TRL's own config; raises ValueError or TypeError for what it doesn't take, before any weight is loaded."""
        raise NotImplementedError

    def trainer(
        self, setup: TrainerSetup, arguments: TrainingArguments, callbacks: Sequence[TrainerCallback]
    ) -> Trainer:
        """The trainer over the base model's weights, which are loaded here."""
        raise NotImplementedError

    def token_counter(self, trainer: Trainer, world_size: int) -> TokenCounter:
        """Counts the tokens of each step of a trainer that `trainer` made."""
        raise NotImplementedError


TokenCounter = Callable[[Mapping[str, float]], dict[str, float] | None]
"""Takes a step's metrics; returns tokens over all devices: `generated`, `trained`, `scored` (in forward passes without
a gradient), and the mean `length` of a sequence. None for a step of which that is not known."""


def counted_by_trl(sequences: int, scored: int) -> TokenCounter:
    """Counts by TRL's `num_tokens`, its sum over the training, gathered from all devices.

    `sequences`: of a step, over all devices. `scored`: forward passes without a gradient over each of their tokens.
    """
    before: float | None = None

    def count(metrics: Mapping[str, float]) -> dict[str, float] | None:
        nonlocal before
        total, last = metrics.get("num_tokens", 0.0), before
        before = total
        if last is None and metrics.get("step") != 1.0:
            return None  # resumed: what this step went through is not known
        new = total - (last or 0.0)
        return {"generated": 0.0, "trained": new, "scored": scored * new, "length": new / sequences}

    return count
