"""KTO (arXiv 2402.01306) through TRL: logged answers that people liked or not, each by itself, no pairs and no scorer.

The reference is the policy with its adapter off. Both kinds of thumbs weigh the same in the loss, whatever their
counts. It has no guard of its own against thumbs that mean nothing, and drifts on many of them: held-out generation
judges it, and `kl_stop` ends it.
"""

from __future__ import annotations

from collections import Counter
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
    "desirable_weight",
    "undesirable_weight",
    "max_length",
    "train_sampling_strategy",
    "precompute_ref_log_probs",  # its cache lies outside the data root
    "sync_ref_model",  # the reference's weights are in no checkpoint
}


class KTO(TableMethod):
    """Kahneman-Tversky Optimization (arXiv 2402.01306), as TRL's KTOTrainer runs it."""

    title: ClassVar[str] = "KTO"
    needs: ClassVar[tuple[EvidenceKey, ...]] = ("thumbs", "rarer_thumb", "signal")
    material: ClassVar[Material] = "contrasted_thumbs"
    material_name: ClassVar[str] = "thumbs of both kinds"
    table: ClassVar[TableName] = "thumbs"
    columns: ClassVar[tuple[str, ...]] = ("prompt", "completion", "label")

    kind: Literal["kto"] = "kto"
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
    max_class_weight: float = Field(default=10.0, ge=1)
    """Most that a thumb of the rarer kind weighs against one of the other; up to it both kinds weigh the same in all
    (the paper's equation 8)."""
    kl_stop: Annotated[PositiveFloat | None, Observer] = 5.0
    """KL to the base model in nats an answer, on held-out prompts, above which the training is stopped; null: no limit.
    Measured on answers of about 15 tokens: longer ones may take more. It needs training.validation."""
    max_tokens: PositiveInt | None = None
    """Prompt and answer together; a longer answer is cut at its end. null: the model's context."""
    trainer_args: dict[str, Any] = Field(default={})
    """Anything else that TRL's KTOConfig takes."""

    @property
    def keeps_reference(self) -> bool:
        return True

    @model_validator(mode="after")
    def _nothing_decided_twice(self) -> KTO:
        refuse_decided(self.trainer_args, _DECIDED)
        return self

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

    def work(self, prompt_tokens: float, completion_tokens: float) -> TrainingWork:
        """The update (6 operations a weight and token), the reference's log-probabilities (2), and those of swapped
        answers under policy and reference (4)."""
        samples = self.scheduled_rows
        trained = samples * (prompt_tokens + completion_tokens)
        return TrainingWork(
            samples=samples,
            rows=samples,
            generated=0.0,
            trained=trained,
            flops_per_parameter=(6 + 2 * self._passes) * trained,
        )

    def arguments(self, setup: TrainerSetup) -> TrainingArguments:
        from trl.trainer.kto_config import KTOConfig

        batch = setup.batch_arguments(self.trainer_args, self.examples_per_update)
        if batch["per_device_train_batch_size"] < 2:
            raise ValueError(
                "KTO needs two rows and more at once on a device, whose answers are swapped: raise "
                "training.kto.batch_size or per_device_train_batch_size, or use fewer processes."
            )
        up, down = self.class_weights(setup.rows(("label",))["label"])
        arguments: dict[str, Any] = {
            **setup.shared_arguments(),
            "learning_rate": self.learning_rate,
            "beta": self.beta,
            "loss_type": self.loss_type,
            "desirable_weight": up,
            "undesirable_weight": down,
            "max_length": self.max_tokens or setup.context(),
            "train_sampling_strategy": "sequential",  # the plan's rows are already in the order of the steps
            **self.trainer_args,
            **batch,
        }
        return KTOConfig(**arguments)

    def trainer(
        self, setup: TrainerSetup, arguments: TrainingArguments, callbacks: Sequence[TrainerCallback]
    ) -> Trainer:
        from trl.trainer.kto_config import KTOConfig

        from pipeline.recipe.methods.answers import tokenised
        from pipeline.recipe.methods.thumb_trainer import ThumbTrainer, thumb_dataset

        assert isinstance(arguments, KTOConfig), "made by `arguments`"
        model, tokenizer = setup.model_and_tokenizer()
        rows = setup.rows(self.columns).to_list()
        answers = tokenised(tokenizer, setup.stop_ids(), rows)
        answers.refuse_long_prompts(arguments.max_length)
        return ThumbTrainer(
            model=model,
            args=arguments,
            train_dataset=thumb_dataset(answers, [row["label"] for row in rows], arguments.per_device_train_batch_size),
            processing_class=tokenizer,
            peft_config=setup.lora_config(),
            callbacks=list(callbacks),
        )

    @property
    def _passes(self) -> int:
        """Forward passes without a gradient, each over as many tokens as are trained."""
        return 3 if self.loss_type == "kto" else 1

    def token_counter(self, trainer: Trainer, world_size: int) -> TokenCounter:
        return counted_by_trl(self.batch_size, scored=self._passes)
