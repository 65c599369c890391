"""TRL's config and trainer of a plan's method."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import Trainer

from pipeline.recipe.methods import DPO, GRPO, KTO, SFT
from pipeline.training.methods.answers import tokenised
from pipeline.training.methods.builder import MethodTrainer
from pipeline.training.plan import TrainingPlan
from pipeline.training.rates import TokenCounter
from pipeline.training.reward_function import RewardFunction

DPO_LOSS = {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.3]}


class GRPOBuilder(MethodTrainer):
    method: GRPO

    def own(self, batch: Mapping[str, int]) -> dict[str, Any]:
        same = ("num_generations", "temperature", "beta", "loss_type")
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
            arguments["generation_kwargs"] = {"stop_token_ids": self.stop_ids, **extra}
        return arguments

    def build(self, **kwargs: Any) -> Trainer:
        from pipeline.training.methods.trl_trainers import GroupTrainer

        return GroupTrainer(**kwargs, reward_funcs=self.reward, builder=self)

    def token_counter(self, trainer: Any) -> TokenCounter:
        return lambda _: trainer.take_counted()


class DPOBuilder(MethodTrainer):
    """The reference model is the policy with its adapter off."""

    method: DPO

    def own(self, batch: Mapping[str, int]) -> dict[str, Any]:
        return {
            "beta": self.method.beta,
            **{name: value for name, value in DPO_LOSS.items() if name not in self.method.trainer_args},
            "max_length": self.limit(),
            "train_sampling_strategy": "sequential",
        }

    def dataset(self, arguments: Any) -> Dataset:
        rows = self.rows(self.method.columns).to_list()
        chosen, rejected = (
            tokenised(self.tokenizer, self.stop_ids, [{**row, "completion": row[side][0]["content"]} for row in rows])
            for side in ("chosen", "rejected")
        )
        chosen.refuse_long_prompts(arguments.max_length)
        ids = {"prompt_ids": chosen.prompts, "chosen_ids": chosen.answers, "rejected_ids": rejected.answers}
        return Dataset.from_dict(ids)

    def build(self, **kwargs: Any) -> Trainer:
        from pipeline.training.methods.trl_trainers import PairTrainer

        return PairTrainer(**kwargs)


class SFTBuilder(MethodTrainer):
    """The loss falls on the answer and its end token alone, in the very tokens that generation would have drawn."""

    method: SFT

    def own(self, batch: Mapping[str, int]) -> dict[str, Any]:
        # `dataset` refuses what does not fit
        return {"max_length": None, "train_sampling_strategy": "sequential"}

    def dataset(self, arguments: Any) -> Dataset:
        answers = tokenised(self.tokenizer, self.stop_ids, self.rows(self.method.columns).to_list())
        answers.refuse_long_rows(self.limit())
        return Dataset.from_list(answers.labelled())

    def build(self, **kwargs: Any) -> Trainer:
        """TRL asks for a router's logits with each batch, and in the model's configuration as well: there, validation
        would ask for them, whose prompts grow by tokens that their mask does not have, and so would the export."""
        config = kwargs["model"].config.get_text_config()
        before = getattr(config, "output_router_logits", None)
        trainer = super().build(**kwargs)
        if before is not None:
            config.output_router_logits = before
        return trainer


class KTOBuilder(MethodTrainer):
    """The reference model is the policy with its adapter off."""

    method: KTO

    def own(self, batch: Mapping[str, int]) -> dict[str, Any]:
        if batch["per_device_train_batch_size"] < 2:
            raise ValueError(
                "KTO needs two rows and more at once on a device, whose answers are swapped: raise "
                "training.kto.batch_size or per_device_train_batch_size, or use fewer processes."
            )
        up, down = self.method.class_weights(self.rows(("label",))["label"])
        return {
            "beta": self.method.beta,
            "desirable_weight": up,
            "undesirable_weight": down,
            "max_length": self.limit(),
            "train_sampling_strategy": "sequential",
        }

    def dataset(self, arguments: Any) -> Dataset:
        rows = self.rows(self.method.columns).to_list()
        answers = tokenised(self.tokenizer, self.stop_ids, rows)
        answers.refuse_long_prompts(arguments.max_length)
        return answers.swapped([row["label"] for row in rows], arguments.per_device_train_batch_size)

    def build(self, **kwargs: Any) -> Trainer:
        from pipeline.training.methods.trl_trainers import ThumbTrainer

        return ThumbTrainer(**kwargs)


BUILDERS: dict[str, type[MethodTrainer]] = {
    "grpo": GRPOBuilder, "dpo": DPOBuilder, "sft": SFTBuilder, "kto": KTOBuilder,
}  # fmt: skip


def trainer_of(plan: TrainingPlan, folder: Path, reward: RewardFunction) -> MethodTrainer:
    """The builder of the plan's method."""
    return BUILDERS[plan.trained_by().kind](plan, folder, reward)
