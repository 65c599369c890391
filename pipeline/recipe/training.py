"""Recipe section `training`: the methods' settings, what is trained, how it is distributed, saved and watched."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pipeline.recipe.methods import MethodSettings
from pipeline.recipe.section import Line, Observer, Operational, Section


class Lora(Section):
    """Low-rank adaptation (arXiv 2106.09685), as PEFT's LoraConfig takes it."""

    r: PositiveInt = 16
    """Rank of the two matrices that are trained for each weight matrix."""
    alpha: PositiveInt = 32
    """The product of the two is scaled by alpha / r."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the inputs of an adapter that are dropped in training."""
    target_modules: str = "all-linear"
    """Modules that get an adapter: `all-linear`, or a regular expression over their names (NeMo RL: `all-linear`)."""
    modules_to_save: tuple[Line, ...] = ()
    """Names of modules that are trained whole beside the adapters, such as lm_head."""
    trainable_tokens: tuple[str, ...] = ()
    """Tokens of the base model's tokenizer whose rows of the input embedding are trained, and of an output that is tied
    to it; one that is not takes lm_head in `modules_to_save`."""
    rslora: bool = False
    """Scale by alpha / sqrt(r) (arXiv 2312.03732)."""
    dora: bool = False
    """Train each weight's magnitude apart from its direction (arXiv 2402.09353)."""
    quantise: Literal["none", "nf4"] = "none"
    """nf4: the base in 4 bits (QLoRA, arXiv 2305.14314), through bitsandbytes; on a GPU only."""


ScorerName = Literal["judge", "reward_model", "custom"]


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
    seed: ClassVar[int] = 17
    """Seed of the sampling, the same at each validation: differences are those of the policy."""


class Sentinel(Section):
    """Limits on the live metrics; pipeline/training/sentinel.py has the rules, and the limits that do not vary."""

    warm_up: NonNegativeInt = 0
    """First steps in which only NaN stops."""
    kl_hold: PositiveFloat = 0.1
    """KL to the base model, per token, above which a training is held (seed 000: healthy 0.01 to 0.10)."""
    kl_stop: PositiveFloat = 0.5
    """The same above which it is stopped (seed 000)."""
    length_drift: PositiveFloat = 0.3
    """Share by which completions may grow or shrink (arXiv 2310.03716)."""
    grad_norm: PositiveFloat = 10.0
    """Norm of the gradient above which, in every step of a window, a training is held (seed 000)."""


class Checkpoints(Section):
    every_steps: PositiveInt = 10
    """GRPO rounds it up to the end of a batch of generation, where a resume is exact."""
    interruption_every_s: float | None = Field(default=None, ge=1, le=1e9)
    """Mean time between interruptions of the whole gang. With it, the interval is Young's and Daly's
    sqrt(2 x save time x this), from the measured save time; `every_steps` is the first one."""
    keep_last: PositiveInt = 2
    """Newest checkpoints that stay on the disk."""
    keep_best: NonNegativeInt = 1
    """Further ones, by held-out accuracy or the second scorer's word; the first of them is what a stopped training ends
    with."""
    mirror: str | None = None
    """Object store to copy each checkpoint to, such as s3://bucket/prefix, for nodes whose disk dies with them."""


class Distribution(Section):
    """How the training is spread over the processes of `compute`."""

    strategy: Literal["ddp", "fsdp2", "zero2"] = "ddp"
    """ddp: the model on every device. fsdp2 shards weights, gradients and optimizer; zero2 all but weights."""
    cpu_offload: bool = False
    """Keep the optimizer's state (and with fsdp2 the weights) in the host's memory."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.strategy == "ddp" and self.cpu_offload:
            raise ValueError("strategy ddp has nothing to offload: choose fsdp2 or zero2.")
        return self


class TrainingSettings(Section):
    """Everything of the section but the methods' own settings: what a plan has in addition to its method."""

    model_config = ConfigDict(revalidate_instances="subclass-instances")  # a plan takes no `Training` for it

    engine: Literal["trl", "nemo_rl"] = "trl"
    """What trains: TRL in processes of this project, or NeMo RL (0.6.0 or 0.7.0, GRPO only) from its own checkout."""
    lora: Lora | None = Lora()
    """An adapter; null trains every weight."""
    attention: Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3"] | None = None
    """Implementation of the attention in the training; null: the one that transformers takes for the model."""
    distribution: Distribution = Distribution()
    """How the work is spread over devices."""
    validation: Annotated[Validation, Observer] = Validation()
    """Held-out prompts that are answered during the training."""
    sentinel: Annotated[Sentinel, Observer] = Sentinel()
    """Limits beyond which the training is held or stopped."""
    checkpoints: Annotated[Checkpoints, Operational] = Checkpoints()
    """When the training is saved and what is kept."""
    seed: int = 1
    """Seed of the adapter's first weights, the order of the rows and the sampling of completions."""
    threads: PositiveInt = 1
    """Compute threads on CPU. Two help on a quiet machine and hurt badly on a busy one."""
    timeout_s: Annotated[PositiveFloat, Operational] = Field(default=6 * 3600.0, le=1e9)
    """Longest duration of one attempt, then SIGTERM. On one machine the step is retried, on a cluster not."""
    grace_s: Annotated[PositiveFloat, Operational] = Field(default=100.0, le=1e9)
    """From SIGTERM to SIGKILL. A spot notice is 120 s, of which a pod's grace may use about 110."""


class Training(TrainingSettings, MethodSettings):
    def without_methods(self) -> TrainingSettings:
        return TrainingSettings.model_validate(self.model_dump(include=set(TrainingSettings.model_fields)))
