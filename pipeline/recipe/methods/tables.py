"""Settings of the methods that draw nothing: DPO, SFT and KTO go through so many rows of a table in a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from pydantic.json_schema import SkipJsonSchema

from pipeline.recipe.methods.method import Method, TrainingWork
from pipeline.recipe.section import Length, Observer


class TableMethod(Method):
    """A method whose every step reads `batch_size` rows of its table."""

    sides: ClassVar[int] = 1
    """Sequences of a row."""

    batch_size: PositiveInt
    """Rows in a step."""

    @property
    def passes(self) -> int:
        """Forward passes without a gradient over each token that is trained."""
        return 0

    @property
    def examples_per_update(self) -> int:
        return self.batch_size

    @property
    def scheduled_rows(self) -> int:
        return self.steps * self.batch_size

    def work(self, prompt_tokens: float, completion_tokens: float) -> TrainingWork:
        """Operations a weight and token: 6 for the update, 2 for each pass without a gradient."""
        rows = self.scheduled_rows
        trained = self.sides * rows * (prompt_tokens + completion_tokens)
        flops = (6 + 2 * self.passes) * trained
        return TrainingWork(samples=rows, rows=rows, generated=0.0, trained=trained, flops_per_parameter=flops)


PreferenceLoss = Literal[
    "sigmoid", "sft", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired",
    "apo_zero", "apo_down", "discopop", "sigmoid_norm",
]  # fmt: skip
"""TRL's names."""


class DPO(TableMethod):
    """Direct Preference Optimization (arXiv 2305.18290), as TRL's DPOTrainer runs it."""

    title = "DPO"
    needs = ("coverage", "pairs", "noise")
    forced_on_scores = True
    material = "pairs"
    material_name = "preference pairs"
    table = "pairs"
    columns = ("prompt", "chosen", "rejected")
    decided = frozenset(["loss_weights", "max_length", "train_sampling_strategy"])
    sides = 2

    kind: SkipJsonSchema[Literal["dpo"]] = "dpo"
    """Names the method in a plan."""
    steps: Annotated[PositiveInt, Length] = 200
    """Optimizer steps."""
    batch_size: PositiveInt = 32
    """Pairs in a step (seed 002: 4 x 8)."""
    learning_rate: Annotated[PositiveFloat, Length] = 5e-7
    """At the first step; it falls linearly to 0. Seed 002, for all weights; an adapter takes more."""
    beta: PositiveFloat = 0.1
    """Weight of the distance to the reference model (seed 002); a lower one moves further from it."""
    loss_type: tuple[PreferenceLoss, ...] = ("sigmoid", "sft")
    """The sft term keeps the chosen likelihood from falling together with the rejected one."""
    loss_weights: tuple[float, ...] = (1.0, 0.3)
    """Weight of each of `loss_type`, in the same order."""
    max_tokens: PositiveInt | None = None
    """Prompt and completion together; a longer side of a pair is cut at its end. null: the model's context."""
    kl_stop: Annotated[PositiveFloat | None, Observer] = None
    """KL to the base model in nats an answer, on held-out prompts, above which the training is stopped; null: no limit.
    It needs training.validation."""
    trainer_args: dict[str, Any] = Field(default={})
    """Anything else that TRL's DPOConfig takes; under NeMo RL, its own keys."""

    @model_validator(mode="after")
    def _weighted(self) -> DPO:
        if len(self.loss_type) != len(self.loss_weights):
            raise ValueError(f"{len(self.loss_type)} loss_type but {len(self.loss_weights)} loss_weights: pair them.")
        return self

    @property
    def passes(self) -> int:
        """The reference's."""
        return 1


class SFT(TableMethod):
    """Supervised fine-tuning on the best of k fresh answers (arXiv 2304.06767), as TRL's SFTTrainer runs it."""

    title = "SFT"
    needs = ("winners", "scorer")
    material = "winners"
    material_name = "best answers of fresh samples"
    table = "winners"
    columns = ("prompt", "completion")
    decided = frozenset([
        "max_length", "train_sampling_strategy", "shuffle_dataset", "truncation_mode", "packing", "padding_free",
        "completion_only_loss", "assistant_only_loss", "eos_token", "pad_token", "chat_template_path",
        "dataset_kwargs", "dataset_text_field",
    ])  # fmt: skip

    kind: SkipJsonSchema[Literal["sft"]] = "sft"
    """Names the method in a plan."""
    steps: Annotated[PositiveInt, Length] = 100
    """Optimizer steps."""
    batch_size: PositiveInt = 16
    """Answers in a step."""
    learning_rate: Annotated[PositiveFloat, Length] = 2e-5
    """At the first step; it falls linearly to 0. TRL's, for all weights; an adapter takes ten times as much."""
    loss_type: Literal["nll", "dft"] = "nll"
    """TRL's names: the negative log-likelihood, or weighted by the answer's own probability (arXiv 2508.05629)."""
    kl_stop: Annotated[PositiveFloat | None, Observer] = None
    """KL to the base model in nats an answer, on held-out prompts, above which the training is stopped; null: no limit.
    It needs training.validation and an adapter."""
    max_tokens: PositiveInt | None = None
    """Prompt and answer together; a longer row is refused, for its end would be cut off. null: the model's context."""
    trainer_args: dict[str, Any] = Field(default={})
    """Anything else that TRL's SFTConfig takes."""


class KTO(TableMethod):
    """Kahneman-Tversky Optimization (arXiv 2402.01306), as TRL's KTOTrainer runs it."""

    title = "KTO"
    needs = ("thumbs", "rarer_thumb", "signal")
    material = "contrasted_thumbs"
    material_name = "thumbs of both kinds"
    table = "thumbs"
    columns = ("prompt", "completion", "label")
    decided = frozenset([
        "desirable_weight", "undesirable_weight", "max_length", "train_sampling_strategy",
        "precompute_ref_log_probs",  # its cache lies outside the data root
        "sync_ref_model",  # the reference's weights are in no checkpoint
    ])  # fmt: skip

    kind: SkipJsonSchema[Literal["kto"]] = "kto"
    """Names the method in a plan."""
    steps: Annotated[PositiveInt, Length] = 100
    """Optimizer steps."""
    batch_size: int = Field(default=32, ge=2)
    """Rated answers in a step; each device needs two and more at once, whose answers are swapped to estimate KL."""
    learning_rate: Annotated[PositiveFloat, Length] = 5e-6
    """At the first step; it falls linearly to 0. The paper's for beta 0.1 and all weights; an adapter, and the small
    embedded models, take more. From 2e-4 on it drifts."""
    beta: PositiveFloat = 0.1
    """Weight of the distance to the reference model (the paper's); a lower one moves further from it."""
    loss_type: Literal["kto", "apo_zero_unpaired"] = "kto"
    """TRL's names; apo_zero_unpaired (arXiv 2408.06266) leaves the KL estimate of a batch out."""
    max_class_weight: ClassVar[float] = 10.0
    """Most that a thumb of the rarer kind weighs against one of the other; up to it both kinds weigh the same in all
    (the paper's equation 8)."""
    kl_stop: Annotated[PositiveFloat | None, Observer] = 5.0
    """KL to the base model in nats an answer, on held-out prompts, above which the training is stopped; null: no limit.
    Measured on answers of about 15 tokens: longer ones may take more. It needs training.validation."""
    max_tokens: PositiveInt | None = None
    """Prompt and answer together; a longer answer is cut at its end. null: the model's context."""
    trainer_args: dict[str, Any] = Field(default={})
    """Anything else that TRL's KTOConfig takes."""

    def usable(self, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """All of them. Raises ValueError where they are of one kind: nothing says then what to prefer."""
        self.class_weights([bool(row["label"]) for row in rows])
        return rows

    def class_weights(self, labels: Sequence[bool]) -> tuple[float, float]:
        """Weight of a thumb up and of a thumb down. Both kinds weigh the same in all, within `max_class_weight`, and a
        row weighs 1 on average. Raises ValueError where one kind is missing."""
        counts = Counter(labels)
        up, down = counts[True], counts[False]
        if not up or not down:
            raise ValueError(
                f"KTO needs thumbs of both kinds, and these are {up} up and {down} down: collect the other kind, or "
                "set selection.method auto."
            )
        ratio = min(max(down / up, 1 / self.max_class_weight), self.max_class_weight)  # of an up's weight to a down's
        scale = len(labels) / (up * ratio + down)
        return ratio * scale, scale

    @property
    def passes(self) -> int:
        """The reference's, and those of swapped answers under policy and reference."""
        return 3 if self.loss_type == "kto" else 1
