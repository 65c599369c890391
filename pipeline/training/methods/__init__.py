"""TRL's config and trainer of a plan's method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import trl  # which imports each trainer where it is used
from datasets import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from pipeline.recipe.methods import DPO, GRPO, KTO, SFT
from pipeline.training.methods.answers import tokenised
from pipeline.training.rates import TokenCounter, Tokens

if TYPE_CHECKING:
    from pipeline.training.setup import PlanSetup


class MethodTrainer:
    """Builds the trainer of one plan."""

    def __init__(self, setup: PlanSetup) -> None:
        self.setup = setup
        self.method: Any = setup.plan.trained_by()

    def arguments(self) -> TrainingArguments:
        """TRL's own config; raises ValueError or TypeError for what it doesn't take, before any weight is loaded."""
        extra = self.method.trainer_args
        batch = self.setup.batch_arguments(extra, self.method.examples_per_update)
        given = {**self.setup.shared_arguments(), "learning_rate": self.method.learning_rate, **extra, **batch}
        return getattr(trl, f"{self.method.title}Config")(**{**given, **self.own(batch)})

    def trainer(self, arguments: TrainingArguments, callbacks: Sequence[TrainerCallback]) -> Trainer:
        """The trainer over the base model's weights, which are loaded here."""
        model, tokenizer = self.setup.model_and_tokenizer()
        return self.build(
            model=model,
            args=arguments,
            train_dataset=self.dataset(tokenizer, arguments),
            processing_class=tokenizer,
            peft_config=self.setup.lora_config(),
            callbacks=list(callbacks),
        )

    def own(self, batch: Mapping[str, int]) -> dict[str, Any]:
        """The arguments that the method's settings decide; the plan's rows are in the order of the steps already."""
        raise NotImplementedError

    def dataset(self, tokenizer: Any, arguments: Any) -> Dataset:
        """The plan's rows as the trainer takes them."""
        return self.setup.rows(self.method.columns)

    def build(self, **kwargs: Any) -> Trainer:
        return getattr(trl, f"{self.method.title}Trainer")(**kwargs)

    def token_counter(self, trainer: Trainer) -> TokenCounter:
        """Counts the tokens of each step by TRL's `num_tokens`, its sum over the training and all devices."""
        before: float | None = None
        sequences, passes = self.method.sides * self.method.batch_size, self.method.passes

        def count(metrics: Mapping[str, float]) -> Tokens | None:
            nonlocal before
            total, last = metrics.get("num_tokens", 0.0), before
            before = total
            if last is None and metrics.get("step") != 1.0:
                return None  # resumed: what this step went through is not known
            new = total - (last or 0.0)
            return Tokens(generated=0.0, trained=new, scored=passes * new, length=new / sequences)

        return count


class GRPOBuilder(MethodTrainer):
    method: GRPO

    def own(self, batch: Mapping[str, int]) -> dict[str, Any]:
        same = ("num_generations", "num_iterations", "temperature", "beta", "epsilon", "loss_type",
                "scale_rewards")  # fmt: skip
        engine = self.method.generation
        arguments = {name: getattr(self.method, name) for name in same} | {
            "max_completion_length": self.method.max_completion_tokens,
            "use_vllm": engine != "transformers",
            "shuffle_dataset": False,
            "steps_per_generation": batch["gradient_accumulation_steps"] * self.method.num_minibatches,
        }
        if engine != "transformers":  # vLLM reads config.json for stop ids only if there is no other
            extra = self.method.trainer_args.get("generation_kwargs", {})
            arguments["vllm_mode"] = engine.removeprefix("vllm_")
            arguments["generation_kwargs"] = {"stop_token_ids": self.setup.stop_ids(), **extra}
        return arguments

    def build(self, **kwargs: Any) -> Trainer:
        from pipeline.training.methods.group_trainer import GroupTrainer

        rewards, rollout = self.setup.reward, self.setup.rollout()
        return GroupTrainer(
            **kwargs, reward_funcs=rewards, rollout_func=rollout, settings=self.method, setup=self.setup
        )

    def token_counter(self, trainer: Any) -> TokenCounter:
        """What the GroupTrainer counted on this rank, over all ranks: they do the same number of completions each."""
        world_size = self.setup.plan.world_size

        def count(_: Mapping[str, float]) -> Tokens:
            counted: Tokens = trainer.take_counted()
            generated, trained, scored = (world_size * each for each in counted[:3])
            return Tokens(generated, trained, scored, counted.length)

        return count


class DPOBuilder(MethodTrainer):
    """The reference model is the policy with its adapter off."""

    method: DPO

    def own(self, batch: Mapping[str, int]) -> dict[str, Any]:
        return {
            "beta": self.method.beta,
            "loss_type": list(self.method.loss_type),
            "loss_weights": list(self.method.loss_weights),
            "max_length": self.method.max_tokens or self.setup.context(),
            "train_sampling_strategy": "sequential",
        }


class SFTBuilder(MethodTrainer):
    """The loss falls on the answer and its end token alone, in the very tokens that generation would have drawn."""

    method: SFT

    def own(self, batch: Mapping[str, int]) -> dict[str, Any]:
        # `dataset` refuses what does not fit
        return {"loss_type": self.method.loss_type, "max_length": None, "train_sampling_strategy": "sequential"}

    def dataset(self, tokenizer: Any, arguments: Any) -> Dataset:
        answers = tokenised(tokenizer, self.setup.stop_ids(), self.setup.rows(self.method.columns).to_list())
        answers.refuse_long_rows(self.method.max_tokens or self.setup.context())
        return Dataset.from_list(answers.labelled())


class KTOBuilder(MethodTrainer):
    """The reference model is the policy with its adapter off."""

    method: KTO

    def own(self, batch: Mapping[str, int]) -> dict[str, Any]:
        if batch["per_device_train_batch_size"] < 2:
            raise ValueError(
                "KTO needs two rows and more at once on a device, whose answers are swapped: raise "
                "training.kto.batch_size or per_device_train_batch_size, or use fewer processes."
            )
        up, down = self.method.class_weights(self.setup.rows(("label",))["label"])
        return {
            "beta": self.method.beta,
            "loss_type": self.method.loss_type,
            "desirable_weight": up,
            "undesirable_weight": down,
            "max_length": self.method.max_tokens or self.setup.context(),
            "train_sampling_strategy": "sequential",
        }

    def dataset(self, tokenizer: Any, arguments: Any) -> Dataset:
        rows = self.setup.rows(self.method.columns).to_list()
        answers = tokenised(tokenizer, self.setup.stop_ids(), rows)
        answers.refuse_long_prompts(arguments.max_length)
        return answers.swapped([row["label"] for row in rows], arguments.per_device_train_batch_size)

    def build(self, **kwargs: Any) -> Trainer:
        from pipeline.training.methods.thumb_trainer import ThumbTrainer

        return ThumbTrainer(**kwargs)


def trainer_of(setup: PlanSetup) -> MethodTrainer:
    """The builder of the plan's method."""
    return {"grpo": GRPOBuilder, "dpo": DPOBuilder, "sft": SFTBuilder, "kto": KTOBuilder}[setup.plan.trained_by().kind](
        setup
    )
