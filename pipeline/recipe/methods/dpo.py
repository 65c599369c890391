"""DPO (arXiv 2305.18290) through TRL: logged pairs, the reference model being the policy with its adapter off.

Ranking its pairs right says little of a policy: chosen and rejected can fall together while that share reads 1.0. So
it is judged by held-out generation, as GRPO is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from pipeline.recipe.methods.method import (
    DECIDED,
    EvidenceKey,
    Material,
    TableName,
    TokenCounter,
    TrainerSetup,
    TrainingWork,
    counted_by_trl,
    refuse_decided,
)
from pipeline.recipe.methods.table_method import TableMethod
from pipeline.recipe.section import Length, Observer

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback, TrainingArguments

PreferenceLoss = Literal[
    "sigmoid", "sft", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired",
    "apo_zero", "apo_down", "discopop", "sigmoid_norm",
]  # fmt: skip
"""TRL's names."""


class DPO(TableMethod):
    """Direct Preference Optimization (arXiv 2305.18290), as TRL's DPOTrainer runs it."""

    title: ClassVar[str] = "DPO"
    needs: ClassVar[tuple[EvidenceKey, ...]] = ("coverage", "pairs", "noise")
    forced_on_scores: ClassVar[bool] = True
    material: ClassVar[Material] = "pairs"
    material_name: ClassVar[str] = "preference pairs"
    table: ClassVar[TableName] = "pairs"
    columns: ClassVar[tuple[str, ...]] = ("prompt", "chosen", "rejected")

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
    kl_stop: Annotated[PositiveFloat | None, Observer] = None
    """KL to the base model in nats an answer, on held-out prompts, above which the training is stopped; null: no limit.
    It needs training.validation."""
    trainer_args: dict[str, Any] = Field(default={})
    """Anything else that TRL's DPOConfig takes; under NeMo RL, its own keys."""

    @property
    def keeps_reference(self) -> bool:
        return True

    @model_validator(mode="after")
    def _weighted(self) -> DPO:
        refuse_decided(self.trainer_args, DECIDED | {"loss_weights", "max_length", "train_sampling_strategy"})
        if len(self.loss_type) != len(self.loss_weights):
            raise ValueError(f"{len(self.loss_type)} loss_type but {len(self.loss_weights)} loss_weights: pair them.")
        return self

    def work(self, prompt_tokens: float, completion_tokens: float) -> TrainingWork:
        """The reference's log-probabilities (2 operations a weight and token) and the update (6), of both sides."""
        samples = self.scheduled_rows
        trained = 2 * samples * (prompt_tokens + completion_tokens)
        return TrainingWork(
            samples=samples, rows=samples, generated=0.0, trained=trained, flops_per_parameter=8 * trained
        )

    def arguments(self, setup: TrainerSetup) -> TrainingArguments:
        from trl.trainer.dpo_config import DPOConfig

        arguments: dict[str, Any] = {
            **setup.shared_arguments(),
            "learning_rate": self.learning_rate,
            "beta": self.beta,
            "loss_type": list(self.loss_type),
            "loss_weights": list(self.loss_weights),
            "max_length": self.max_tokens or setup.context(),
            "train_sampling_strategy": "sequential",  # the plan's rows are already in the order of the steps
            **self.trainer_args,
            **setup.batch_arguments(self.trainer_args, self.examples_per_update),
        }
        return DPOConfig(**arguments)

    def trainer(
        self, setup: TrainerSetup, arguments: TrainingArguments, callbacks: Sequence[TrainerCallback]
    ) -> Trainer:
        from trl.trainer.dpo_config import DPOConfig
        from trl.trainer.dpo_trainer import DPOTrainer

        assert isinstance(arguments, DPOConfig), "made by `arguments`"
        model, tokenizer = setup.model_and_tokenizer()
        return DPOTrainer(
            model=model,
            args=arguments,
            train_dataset=setup.rows(self.columns),
            processing_class=tokenizer,
            peft_config=setup.lora_config(),
            callbacks=list(callbacks),
        )

    def token_counter(self, trainer: Trainer, world_size: int) -> TokenCounter:
        """Both sides of all pairs; the reference's pass scores each of them once."""
        return counted_by_trl(2 * self.batch_size, scored=1)
