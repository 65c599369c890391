"""Settings of the training methods: GRPO, and DPO, SFT and KTO, which draw nothing. A new one also needs its trainer in
`pipeline/training/methods`. Of several that the evidence allows, the first of `MethodSettings` is trained."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from pydantic.json_schema import SkipJsonSchema

from pipeline.recipe.method import GENERATION_UTILISATION, Method
from pipeline.recipe.section import Observer, Section

__all__ = [
    "DPO", "GRPO", "KTO", "METHODS", "SFT", "AnyMethod", "Method", "MethodName", "MethodSettings",
]  # fmt: skip


class GRPO(Method):
    """Group Relative Policy Optimization (arXiv 2402.03300), as TRL's GRPOTrainer runs it."""

    title = "GRPO"
    needs = ("coverage", "verifiable", "frontier", "zero_variance")
    forced_on_scores = True
    material = "policy_prompts"
    material_name = "prompts on the frontier, nor any whose fresh samples differ in score,"
    table = "prompts"
    columns = ("prompt", "reference", "verifier")
    decided = frozenset([
        "num_generations", "num_iterations", "steps_per_generation", "generation_batch_size", "max_completion_length",
        "temperature", "loss_type", "use_vllm", "vllm_mode", "shuffle_dataset",
    ])  # fmt: skip

    kind: SkipJsonSchema[Literal["grpo"]] = "grpo"
    prompts_per_step: PositiveInt = 16
    """Prompts in a batch of generation."""
    num_generations: int = Field(default=8, ge=2)
    """Completions of each prompt: the group that advantages are relative to."""
    num_minibatches: PositiveInt = 1
    """Optimizer steps that a batch of generation is split into."""
    max_completion_tokens: PositiveInt = 512
    """Length limit of a completion that is drawn for training."""
    learning_rate: PositiveFloat = 1e-5
    """At the first step; it falls linearly to 0. Seed 002, for an adapter on billions of parameters: the embedded model
    takes a hundred times more."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature of these completions."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL penalty (k3) to the reference model; 0 loads no reference."""
    loss_type: Literal["dapo", "grpo", "bnpo", "dr_grpo"] = "dapo"
    """How token losses are averaged: over all tokens of the step (dapo), within each completion first (grpo), over the
    tokens of a micro-batch (bnpo), or over a constant (dr_grpo, arXiv 2503.20783)."""
    generation: Literal["transformers", "vllm_colocate", "vllm_server"] = "transformers"
    """Who draws completions. vLLM needs a GPU; its own settings go through trainer_args."""
    kl_stop: Annotated[PositiveFloat | None, Observer] = 4.0
    """Of a training on prompts without a reference: KL to the base model in nats an answer, on held-out prompts, above
    which it is stopped; null: no limit. Measured on answers of about 15 tokens: longer ones may take more."""

    @property
    def batches(self) -> int:
        """Batches of generation over the whole training."""
        return self.batches_in(self.steps)

    @model_validator(mode="after")
    def _even(self) -> Self:
        if self.prompts_per_step * self.num_generations % self.num_minibatches:
            raise ValueError(
                f"{self.prompts_per_step} prompts x {self.num_generations} completions do not split into "
                f"num_minibatches {self.num_minibatches}: choose a divisor."
            )
        if self.steps % self.num_minibatches:
            raise ValueError(
                f"steps {self.steps} is no multiple of num_minibatches {self.num_minibatches}: the last batch of "
                "generation would be thrown away half used. Round it."
            )
        return self

    @property
    def examples_per_update(self) -> int:
        return self.prompts_per_step * self.num_generations // self.num_minibatches

    @property
    def scheduled_rows(self) -> int:
        return self.batches * self.prompts_per_step

    def usable(self, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """As many of the most instructive prompts as the steps ask for."""
        return rows[: self.scheduled_rows]

    def flops(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Operations a weight and token: 2 to generate, 2 for the old log-probabilities and 2 more for the reference's
        where beta is over 0, 6 to train."""
        samples = self.scheduled_rows * self.num_generations
        generated = samples * min(completion_tokens, self.max_completion_tokens)
        drawn, scored = generated + samples * prompt_tokens, 4 if self.beta else 2
        return 2 * generated / GENERATION_UTILISATION + (scored + 6) * drawn


class TableMethod(Method):
    """A method whose every step reads `batch_size` rows of its table."""

    sides: ClassVar[int] = 1
    """Sequences of a row."""
    passes: ClassVar[int] = 0
    """Forward passes without a gradient over each token that is trained."""

    batch_size: PositiveInt
    """Rows in a step."""
    max_tokens: PositiveInt | None = None
    """Prompt and answer together. A longer answer loses its end; SFT refuses the row. null: the model's context."""

    @property
    def examples_per_update(self) -> int:
        return self.batch_size

    @property
    def scheduled_rows(self) -> int:
        return self.steps * self.batch_size

    def flops(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Operations a weight and token: 6 for the update, 2 for each pass without a gradient."""
        return (6 + 2 * self.passes) * self.sides * self.scheduled_rows * (prompt_tokens + completion_tokens)


class DPO(TableMethod):
    """Direct Preference Optimization (arXiv 2305.18290), as TRL's DPOTrainer runs it, with an SFT term that keeps the
    chosen likelihood from falling together with the rejected one; `trainer_args` may name another `loss_type`."""

    title = "DPO"
    needs = ("coverage", "pairs", "noise")
    forced_on_scores = True
    material = "pairs"
    material_name = "preference pairs"
    table = "pairs"
    columns = ("prompt", "chosen", "rejected")
    decided = frozenset(["max_length", "train_sampling_strategy"])
    sides, passes = 2, 1

    kind: SkipJsonSchema[Literal["dpo"]] = "dpo"
    batch_size: PositiveInt = 32
    """Pairs in a step (seed 002: 4 x 8)."""
    learning_rate: PositiveFloat = 5e-7
    """At the first step; it falls linearly to 0. Seed 002, for all weights; an adapter takes more."""
    beta: PositiveFloat = 0.1
    """Weight of the distance to the reference model (seed 002); a lower one moves further from it."""


class SFT(TableMethod):
    """Supervised fine-tuning on demonstrations and the best of k fresh answers (arXiv 2304.06767), as TRL's SFTTrainer
    runs it."""

    title = "SFT"
    needs = ("winners", "scorer")
    material = "winners"
    material_name = "demonstrations, nor best answers of fresh samples,"
    table = "winners"
    columns = ("prompt", "completion")
    decided = frozenset([
        "max_length", "train_sampling_strategy", "shuffle_dataset", "truncation_mode", "packing", "padding_free",
        "completion_only_loss", "assistant_only_loss", "eos_token", "pad_token", "chat_template_path",
        "dataset_kwargs", "dataset_text_field",
    ])  # fmt: skip

    kind: SkipJsonSchema[Literal["sft"]] = "sft"
    steps: PositiveInt = 100
    """Optimizer steps."""
    batch_size: PositiveInt = 16
    """Answers in a step."""
    learning_rate: PositiveFloat = 2e-5
    """At the first step; it falls linearly to 0. TRL's, for all weights; an adapter takes ten times as much."""


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
    passes = 3  # the reference's, and those of swapped answers under policy and reference

    kind: SkipJsonSchema[Literal["kto"]] = "kto"
    steps: PositiveInt = 100
    """Optimizer steps."""
    batch_size: int = Field(default=32, ge=2)
    """Rated answers in a step; each device needs two and more at once, whose answers are swapped to estimate KL."""
    learning_rate: PositiveFloat = 5e-6
    """At the first step; it falls linearly to 0. The paper's for beta 0.1 and all weights; an adapter, and the small
    embedded models, take more. From 2e-4 on it drifts."""
    beta: PositiveFloat = 0.1
    """Weight of the distance to the reference model (the paper's); a lower one moves further from it."""
    max_class_weight: ClassVar[float] = 10.0
    """Most that a thumb of the rarer kind weighs against one of the other; up to it both kinds weigh the same in all
    (the paper's equation 8)."""
    kl_stop: Annotated[PositiveFloat | None, Observer] = 5.0
    """KL to the base model in nats an answer, on held-out prompts, above which the training is stopped; null: no limit.
    Measured on answers of about 15 tokens: longer ones may take more. It needs training.validation."""

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


MethodName = Literal["grpo", "dpo", "sft", "kto"]
AnyMethod = Annotated[GRPO | DPO | SFT | KTO, Field(discriminator="kind")]


class MethodSettings(Section):
    grpo: GRPO = GRPO()
    """Settings for an iteration that trains by GRPO."""
    dpo: DPO = DPO()
    """Settings for an iteration that trains by DPO."""
    sft: SFT = SFT()
    """Settings for an iteration that trains by SFT on demonstrations or the best of k."""
    kto: KTO = KTO()
    """Settings for an iteration that trains by KTO."""

    def by_name(self) -> dict[MethodName, AnyMethod]:
        """In the order of preference."""
        return {name: getattr(self, name) for name in METHODS}


METHODS: dict[MethodName, type[Method]] = {"grpo": GRPO, "dpo": DPO, "sft": SFT, "kto": KTO}
