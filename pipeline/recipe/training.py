"""Recipe section `training`: the method's settings, what is trained, how it is distributed, saved and watched."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pipeline.recipe.section import Length, Observer, Operational, Section
from pipeline.recipe.sentinel import Sentinel


class Lora(Section):
    """Low-rank adaptation (arXiv 2106.09685), as PEFT's LoraConfig takes it."""

    r: PositiveInt = 16
    """Rank of the two matrices that are trained beside each weight matrix."""
    alpha: PositiveInt = 32
    """The product of the two is scaled by alpha / r."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the inputs of an adapter that are dropped in training."""
    target_modules: str = "all-linear"
    """Modules that get an adapter: `all-linear`, or a regular expression over their names (NeMo RL: `all-linear`)."""
    quantise: Literal["none", "nf4"] = "none"
    """nf4: the base in 4 bits (QLoRA, arXiv 2305.14314), through bitsandbytes; on a GPU only."""


class DynamicSampling(Section):
    """Groups all right or all wrong carry no gradient: other prompts are drawn in their place (arXiv 2503.14476)."""

    max_batches: int = Field(default=3, ge=2)
    """Rounds of generation for one step, the first included. Groups still missing then stay as they are."""


_DECIDED = frozenset(
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
"""What the recipe's own fields, or what exact resume rests on, decide in both of TRL's configs."""
_DECIDED_GRPO = _DECIDED | frozenset(
    [
        "num_generations",
        "num_iterations",
        "steps_per_generation",
        "generation_batch_size",
        "max_completion_length",
        "temperature",
        "epsilon",
        "epsilon_high",
        "scale_rewards",
        "mask_truncated_completions",
        "use_vllm",
        "vllm_mode",
        "shuffle_dataset",
    ]
)
_DECIDED_DPO = _DECIDED | frozenset(["loss_weights", "max_length", "train_sampling_strategy"])

PreferenceLoss = Literal[
    "sigmoid", "sft", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired",
    "apo_zero", "apo_down", "discopop", "sigmoid_norm",
]  # fmt: skip
"""TRL's names."""


def _refuse(given: dict[str, Any], decided: frozenset[str]) -> None:
    if taken := sorted(decided & given.keys()):
        raise ValueError(
            f"trainer_args: {', '.join(taken)} would override what the recipe or exact resume decides. Change the "
            "recipe's own field, and leave them out."
        )


class GRPO(Section):
    """Group Relative Policy Optimization (arXiv 2402.03300), as TRL's GRPOTrainer runs it."""

    kind: Literal["grpo"] = "grpo"
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
    """The policy ratio is clipped below 1 - epsilon."""
    epsilon_high: PositiveFloat | None = None
    """The ratio is clipped above 1 + epsilon_high; null: epsilon. DAPO's clip-higher is 0.28 (arXiv 2503.14476)."""
    loss_type: Literal["dapo", "grpo", "bnpo", "dr_grpo"] = "dapo"
    """How token losses are averaged: over all tokens of the step (dapo), within each completion first (grpo), over the
    tokens of a micro-batch (bnpo), or over a constant (dr_grpo, arXiv 2503.20783)."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Advantages are divided by the standard deviation of the rewards of their group, of the batch, or by nothing."""
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """What a reward is compared with: its group's mean, or the mean of the others (RLOO, arXiv 2402.14740)."""
    mask_truncated_completions: bool = False
    """Leave completions that were cut at the limit out of the loss."""
    dynamic_sampling: DynamicSampling | None = None
    """Replaces groups without a gradient; null: they stay in the batch."""
    generation: Literal["transformers", "vllm_colocate", "vllm_server"] = "transformers"
    """Who draws completions. vLLM needs a GPU; its own settings go through trainer_args."""
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
        return -(-self.steps // self.updates_per_batch)

    @model_validator(mode="after")
    def _even(self) -> GRPO:
        _refuse(self.trainer_args, _DECIDED_GRPO)
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


class DPO(Section):
    """Direct Preference Optimization (arXiv 2305.18290), as TRL's DPOTrainer runs it."""

    kind: Literal["dpo"] = "dpo"
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
    trainer_args: dict[str, Any] = Field(default={})
    """Anything else that TRL's DPOConfig takes; under NeMo RL, its own keys."""

    @model_validator(mode="after")
    def _weighted(self) -> DPO:
        _refuse(self.trainer_args, _DECIDED_DPO)
        if len(self.loss_type) != len(self.loss_weights):
            raise ValueError(f"{len(self.loss_type)} loss_type but {len(self.loss_weights)} loss_weights: pair them.")
        return self


class Validation(Section):
    """Held-out prompts that the policy answers during training: what its progress and its health are judged by."""

    every_steps: NonNegativeInt = 0
    """0: never. GRPO rounds it up to the end of a batch of generation."""
    prompts: PositiveInt = 64
    """At most; the rest of the held-out prompts is not asked."""
    samples: PositiveInt = 2
    """Completions of each prompt, at temperature 1."""
    max_completion_tokens: PositiveInt = 512
    """Length limit of an answer; one that reaches it counts as truncated. Under NeMo RL that of `grpo`."""
    seed: int = 17
    """Seed of the sampling, the same at each validation: differences are those of the policy."""


class Checkpoints(Section):
    """When the training is saved and what is kept."""

    every_steps: PositiveInt = 10
    """GRPO rounds it up to the end of a batch of generation, where a resume is exact."""
    interruption_every_s: float | None = Field(default=None, ge=1, le=1e9)
    """Mean time between interruptions of the whole gang. With it, the interval is Young's and Daly's
    sqrt(2 x save time x this), from the measured save time; `every_steps` is the first one."""
    keep_last: PositiveInt = 2
    """Newest checkpoints that stay on the disk."""
    keep_best: NonNegativeInt = 1
    """By held-out accuracy, beside the last ones; the first of them is what a stopped training ends with."""
    mirror: str | None = None
    """Object store to copy each checkpoint to, such as s3://bucket/prefix, for nodes whose disk dies with them."""


class Distribution(Section):
    """How the training is spread over the processes of `compute`."""

    strategy: Literal["ddp", "fsdp2", "zero2", "zero3"] = "ddp"
    """ddp: the model on every device. fsdp2 and zero3 shard weights, gradients and optimizer; zero2 all but weights."""
    cpu_offload: bool = False
    """Keep the optimizer's state (and with fsdp2 and zero3 the weights) in the host's memory."""

    @model_validator(mode="after")
    def _possible(self) -> Distribution:
        if self.strategy == "ddp" and self.cpu_offload:
            raise ValueError("strategy ddp has nothing to offload: choose fsdp2, zero2 or zero3.")
        return self


class Training(Section):
    engine: Literal["trl", "nemo_rl"] = "trl"
    """What trains: TRL in processes of this project, or NeMo RL from its own checkout."""
    grpo: GRPO = GRPO()
    """Settings for an iteration that trains by GRPO."""
    dpo: DPO = DPO()
    """Settings for an iteration that trains by DPO."""
    lora: Lora | None = Lora()
    """An adapter; null trains every weight."""
    distribution: Distribution = Distribution()
    """How the work is spread over devices."""
    validation: Annotated[Validation, Observer] = Validation()
    """Held-out prompts that are answered during the training."""
    sentinel: Annotated[Sentinel, Observer] = Sentinel()
    """Limits beyond which the training is held or stopped."""
    checkpoints: Annotated[Checkpoints, Operational] = Checkpoints()
    """When the training is saved and what is kept."""
    seed: Annotated[int, Length] = 1
    """Seed of the adapter's first weights, the order of the rows and the sampling of completions."""
    threads: PositiveInt = 1
    """Compute threads on CPU. Two help on a quiet machine and hurt badly on a busy one."""
    timeout_s: Annotated[PositiveFloat, Operational] = Field(default=6 * 3600.0, le=1e9)
    """Longest duration of one attempt, which is then killed. On one machine the step is retried, on a cluster not."""
    grace_s: Annotated[PositiveFloat, Operational] = Field(default=100.0, le=1e9)
    """From SIGTERM to SIGKILL. A spot notice is 120 s, of which a pod's grace may use about 110."""
