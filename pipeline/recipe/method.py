"""What every training method has in the recipe: its settings, and the evidence, rows and work that follow from them."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from pipeline.recipe.section import Observer, Section

EvidenceKey = Literal[
    "coverage", "verifiable", "frontier", "zero_variance", "pairs", "noise",
    "thumbs", "rarer_thumb", "signal", "winners", "scorer",
]  # fmt: skip
"""What a method may ask of the labelled set (pipeline/selection/choose.py holds each against its threshold)."""
Material = Literal["policy_prompts", "pairs", "contrasted_thumbs", "winners"]
"""Counts of the evidence (pipeline/selection/evidence.py)."""
TableName = Literal["prompts", "pairs", "thumbs", "winners"]
"""Tables of the preference dataset."""

GENERATION_UTILISATION = 0.1
"""Utilisation of a device while it generates, as a share of that while it trains."""

DECIDED = frozenset([
    "output_dir", "seed", "data_seed", "num_train_epochs", "max_steps", "learning_rate", "beta",
    "gradient_accumulation_steps", "save_strategy", "save_steps", "save_total_limit", "save_only_model",
    "load_best_model_at_end", "logging_strategy", "logging_steps", "logging_nan_inf_filter", "report_to",
    "eval_strategy", "eval_steps", "fsdp", "fsdp_config", "deepspeed", "ddp_backend", "enable_jit_checkpoint",
    "ignore_data_skip", "resume_from_checkpoint", "push_to_hub", "log_completions", "chat_template_kwargs",
    "model_init_kwargs", "attn_implementation",
])  # fmt: skip
"""What the recipe's own fields, or what exact resume rests on, decide in every TRL config."""


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
    decided: ClassVar[frozenset[str]] = frozenset()
    """Arguments of TRL's config, in addition to `DECIDED`, that `trainer_args` may not set."""

    steps: PositiveInt = 200
    """Optimizer steps."""
    learning_rate: PositiveFloat
    """At the first step; it falls linearly to 0."""
    kl_stop: Annotated[PositiveFloat | None, Observer] = None
    """KL to the base model in nats an answer, on held-out prompts, above which the training is stopped; null: no limit.
    It needs training.validation, and with SFT an adapter."""
    trainer_args: dict[str, Any] = Field(default={})
    """Anything else that TRL's config of the method takes, checked by constructing it before any weight is loaded.
    Under NeMo RL: its own keys, such as `policy.train_micro_batch_size`."""

    @model_validator(mode="after")
    def _nothing_decided_twice(self) -> Self:
        if taken := sorted((DECIDED | self.decided) & self.trainer_args.keys()):
            raise ValueError(
                f"trainer_args: {', '.join(taken)} would override what the recipe or exact resume decides. Change the "
                "recipe's own field, and leave them out."
            )
        return self

    @property
    def keeps_reference(self) -> bool:
        """Whether its trainer keeps the base model next to a policy without an adapter: where KL weighs in its loss."""
        return getattr(self, "beta", 0.0) > 0

    @property
    def updates_per_batch(self) -> int:
        """Optimizer steps between two states that a training can resume from: those that one batch of generation
        serves."""
        return getattr(self, "num_minibatches", 1)

    def batches_in(self, steps: int) -> int:
        """Batches between two such states in so many steps, the last one whole."""
        return -(-steps // self.updates_per_batch)

    @property
    def group_size(self) -> int | None:
        """Fresh completions of one prompt that are compared with each other; None where none are drawn."""
        return getattr(self, "num_generations", None)

    @property
    def completion_tokens(self) -> int | None:
        """Longest fresh completion; None where none are drawn."""
        return getattr(self, "max_completion_tokens", None)

    @property
    def examples_per_update(self) -> int:
        """Completions or pairs of one optimizer step."""
        raise NotImplementedError

    @property
    def scheduled_rows(self) -> int:
        """Rows of its table over all steps."""
        raise NotImplementedError

    def usable(self, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """The rows of its table that the schedule goes through; the table has the most instructive first. Raises
        ValueError for rows that teach nothing."""
        return rows

    def flops(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Floating-point operations of a whole training for each parameter, at these mean lengths and the utilisation
        of training: generation is slower and counts by that much more."""
        raise NotImplementedError
