"""Settings of the training methods: GRPO, and DPO, SFT and KTO, which draw nothing. A new one also needs its trainer in
`pipeline/training/methods`. Of several that the evidence allows, the first of `MethodSettings` is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from pydantic.json_schema import SkipJsonSchema

from pipeline.recipe.method import GENERATION_UTILISATION, Method, TrainingWork
from pipeline.recipe.section import Length, Observer, Section

__all__ = [
    "DPO", "GRPO", "KTO", "METHODS", "SFT", "AnyMethod", "Method", "MethodName", "MethodSettings", "titles",
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
        "temperature", "epsilon", "scale_rewards", "use_vllm", "vllm_mode", "shuffle_dataset",
    ])  # fmt: skip

    kind: SkipJsonSchema[Literal["grpo"]] = "grpo"
    """Names the method in a plan."""
    prompts_per_step: PositiveInt = 16
    """Prompts in a batch of generation."""
    num_generations: int = Field(default=8, ge=2)
    """Completions of each prompt: the group that advantages are relative to."""
    num_minibatches: PositiveInt = 1
    """Optimizer steps that a batch of generation is split into."""
    num_iterations: PositiveInt = 1
    """Passes over each batch of generation; above 1 the later ones are off-policy and the clip matters."""
    max_completion_tokens: PositiveInt = 512
    """Length limit of a completion that is drawn for training."""
    learning_rate: Annotated[PositiveFloat, Length] = 1e-5
    """At the first step; it falls linearly to 0. Seed 002, for an adapter on billions of parameters: the embedded model
    takes a hundred times more."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature of these completions."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL penalty (k3) to the reference model; 0 loads no reference."""
    epsilon: PositiveFloat = 0.2
    """The policy ratio is clipped below 1 - epsilon and above 1 + epsilon. For DAPO's clip-higher (arXiv 2503.14476):
    `trainer_args: {epsilon_high: 0.28}`, under NeMo RL `loss_fn.ratio_clip_max`."""
    loss_type: Literal["dapo", "grpo", "bnpo", "dr_grpo"] = "dapo"
    """How token losses are averaged: over all tokens of the step (dapo), within each completion first (grpo), over the
    tokens of a micro-batch (bnpo), or over a constant (dr_grpo, arXiv 2503.20783)."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Advantages are divided by the standard deviation of the rewards of their group, of the batch, or by nothing."""
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """What a reward is compared with: its group's mean, or the mean of the others (RLOO, arXiv 2402.14740)."""
    dynamic_sampling: Annotated[int, Field(ge=2)] | None = None
    """Groups all right or all wrong carry no gradient: other prompts are drawn in their place (arXiv 2503.14476), in so
    many rounds for one step at most, the first included. null: they stay in the batch."""
    generation: Literal["transformers", "vllm_colocate", "vllm_server"] = "transformers"
    """Who draws completions. vLLM needs a GPU; its own settings go through trainer_args."""
    kl_stop: Annotated[PositiveFloat | None, Observer] = 4.0
    """Of a training on prompts without a reference: KL to the base model in nats an answer, on held-out prompts, above
    which it is stopped; null: no limit. Measured on answers of about 15 tokens: longer ones may take more."""

    @property
    def updates_per_batch(self) -> int:
        """Optimizer steps that one batch of generation serves. Between its ends there is no state to resume from."""
        return self.num_minibatches * self.num_iterations

    @property
    def batches(self) -> int:
        """Batches of generation over the whole training."""
        return self.batches_in(self.steps)

    @model_validator(mode="after")
    def _even(self) -> GRPO:
        if self.prompts_per_step * self.num_generations % self.num_minibatches:
            raise ValueError(
                f"{self.prompts_per_step} prompts x {self.num_generations} completions do not split into "
                f"num_minibatches {self.num_minibatches}: choose a divisor."
            )
        if self.steps % self.updates_per_batch:
            raise ValueError(
                f"steps {self.steps} is no multiple of num_minibatches x num_iterations = {self.updates_per_batch}: "
                "the last batch of generation would be thrown away half used. Round it."
            )
        return self

    @property
    def group_size(self) -> int | None:
        return self.num_generations

    @property
    def completion_tokens(self) -> int | None:
        return self.max_completion_tokens

    @property
    def examples_per_update(self) -> int:
        return self.prompts_per_step * self.num_generations // self.num_minibatches

    @property
    def scheduled_rows(self) -> int:
        return self.batches * self.prompts_per_step

    @property
    def packages(self) -> Mapping[str, str]:
        return {"vllm": "training.grpo.generation to transformers"} if self.generation != "transformers" else {}

    def usable(self, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """As many of the most instructive prompts as the steps ask for."""
        return rows[: self.scheduled_rows]

    def work(self, prompt_tokens: float, completion_tokens: float) -> TrainingWork:
        """Operations a weight and token: 2 to generate, 2 for the old log-probabilities and 2 more for the reference's
        where beta is over 0, 6 to train."""
        samples = self.scheduled_rows * self.num_generations
        generated = samples * min(completion_tokens, self.max_completion_tokens)
        drawn, scored = generated + samples * prompt_tokens, 4 if self.beta else 2
        trained = drawn * self.num_iterations
        return TrainingWork(
            samples=samples,
            rows=self.scheduled_rows,
            generated=generated,
            trained=trained,
            flops_per_parameter=2 * generated / GENERATION_UTILISATION + scored * drawn + 6 * trained,
        )


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
    """Prompt and completion together; the end of a longer side of a pair is cut. null: the model's context."""

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
    max_tokens: PositiveInt | None = None
    """Prompt and answer together; a longer row is refused, for its end would be cut off. null: the model's context."""


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
    """Prompt and answer together; the end of a longer answer is cut. null: the model's context."""

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


MethodName = Literal["grpo", "dpo", "sft", "kto"]
AnyMethod = Annotated[GRPO | DPO | SFT | KTO, Field(discriminator="kind")]


class MethodSettings(Section):
    grpo: GRPO = GRPO()
    """Settings for an iteration that trains by GRPO."""
    dpo: DPO = DPO()
    """Settings for an iteration that trains by DPO."""
    sft: SFT = SFT()
    """Settings for an iteration that trains by SFT on the best of k."""
    kto: KTO = KTO()
    """Settings for an iteration that trains by KTO."""

    def by_name(self) -> dict[MethodName, AnyMethod]:
        """In the order of preference."""
        return {name: getattr(self, name) for name in METHODS}


METHODS: dict[MethodName, type[Method]] = {"grpo": GRPO, "dpo": DPO, "sft": SFT, "kto": KTO}


def titles(names: tuple[MethodName, ...]) -> str:
    """`GRPO and DPO`, for people."""
    return " and ".join(METHODS[name].title for name in names)
