"""SFT through TRL, on the best of k fresh answers by a scorer: rejection sampling (arXiv 2304.06767, 2309.06657).

The loss falls on the answer and its end token alone, in the very tokens that generation would have drawn. It is the
calmest use of a scorer: the policy learns only what it says already.
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

_DECIDED = DECIDED | {
    "max_length",
    "train_sampling_strategy",
    "shuffle_dataset",
    "truncation_mode",
    "packing",
    "padding_free",
    "completion_only_loss",
    "assistant_only_loss",
    "eos_token",
    "pad_token",
    "chat_template_path",
    "dataset_kwargs",
    "dataset_text_field",
}


class SFT(TableMethod):
    """Supervised fine-tuning on the best of k fresh answers (arXiv 2304.06767), as TRL's SFTTrainer runs it."""

    title: ClassVar[str] = "SFT"
    needs: ClassVar[tuple[EvidenceKey, ...]] = ("winners", "scorer")
    material: ClassVar[Material] = "winners"
    material_name: ClassVar[str] = "best answers of fresh samples"
    table: ClassVar[TableName] = "winners"
    columns: ClassVar[tuple[str, ...]] = ("prompt", "completion")

    kind: Literal["sft"] = "sft"
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

    @model_validator(mode="after")
    def _nothing_decided_twice(self) -> SFT:
        refuse_decided(self.trainer_args, _DECIDED)
        return self

    def work(self, prompt_tokens: float, completion_tokens: float) -> TrainingWork:
        """The update alone (6 operations a weight and token); what the samples cost is their own stage's."""
        samples = self.scheduled_rows
        trained = samples * (prompt_tokens + completion_tokens)
        return TrainingWork(
            samples=samples, rows=samples, generated=0.0, trained=trained, flops_per_parameter=6 * trained
        )

    def arguments(self, setup: TrainerSetup) -> TrainingArguments:
        from trl.trainer.sft_config import SFTConfig

        arguments: dict[str, Any] = {
            **setup.shared_arguments(),
            "learning_rate": self.learning_rate,
            "loss_type": self.loss_type,
            "max_length": None,  # `trainer` refuses what does not fit
            "train_sampling_strategy": "sequential",  # the plan's rows are already in the order of the steps
            **self.trainer_args,
            **setup.batch_arguments(self.trainer_args, self.examples_per_update),
        }
        return SFTConfig(**arguments)

    def trainer(
        self, setup: TrainerSetup, arguments: TrainingArguments, callbacks: Sequence[TrainerCallback]
    ) -> Trainer:
        from datasets import Dataset
        from trl.trainer.sft_config import SFTConfig
        from trl.trainer.sft_trainer import SFTTrainer

        from pipeline.recipe.methods.answers import tokenised

        assert isinstance(arguments, SFTConfig), "made by `arguments`"
        model, tokenizer = setup.model_and_tokenizer()
        answers = tokenised(tokenizer, setup.stop_ids(), setup.rows(self.columns).to_list())
        answers.refuse_long_rows(self.max_tokens or setup.context())
        return SFTTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list(answers.labelled()),
            processing_class=tokenizer,
            peft_config=setup.lora_config(),
            callbacks=list(callbacks),
        )

    def token_counter(self, trainer: Trainer, world_size: int) -> TokenCounter:
        return counted_by_trl(self.batch_size, scored=0)
