"""Settings of GRPO (arXiv 2402.03300): fresh completions of logged prompts, scored by the pipeline's own composite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from pydantic.json_schema import SkipJsonSchema

from pipeline.recipe.methods.method import GENERATION_UTILISATION, Method, TrainingWork
from pipeline.recipe.section import Length, Observer


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
        "temperature", "epsilon", "scale_rewards", "use_vllm",
        "vllm_mode", "shuffle_dataset",
    ])  # fmt: skip

    kind: SkipJsonSchema[Literal["grpo"]] = "grpo"
    """Names the method in a plan."""
    steps: Annotated[PositiveInt, Length] = 200
    """Optimizer steps."""
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
    trainer_args: dict[str, Any] = Field(default={})
    """Anything else that TRL's GRPOConfig takes, checked by constructing it before any weight is loaded. Under NeMo RL:
    its own keys, such as `policy.train_micro_batch_size`."""

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
    def drawn_by(self) -> str | None:
        return self.generation

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
