"""GRPO (arXiv 2402.03300) through TRL: fresh completions of logged prompts, scored by the pipeline's own composite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import Trainer, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from pipeline.recipe import GRPO, Rewards
from pipeline.recipe.rewards import VerifierKind
from pipeline.rewards.composite import score_fresh
from pipeline.rewards.verifiers import Check, Grader
from pipeline.training.fit import common_args, load_base, lora_config, micro_batch, read_rows
from pipeline.training.plan import TrainingPlan


def config(plan: TrainingPlan, settings: GRPO, folder: Path) -> GRPOConfig:
    """TRL's own config; raises ValueError or TypeError for what it doesn't take, before any weight is loaded."""
    completions = settings.prompts_per_step * settings.num_generations
    arguments: dict[str, Any] = {
        **common_args(plan, folder),
        "num_generations": settings.num_generations,
        "max_completion_length": settings.max_completion_tokens,
        "learning_rate": settings.learning_rate,
        "temperature": settings.temperature,
        "beta": settings.beta,
        "shuffle_dataset": False,  # the plan's rows are already in the order of the steps
        **settings.trainer_args,
        **micro_batch(settings.trainer_args, completions),
    }
    return GRPOConfig(**arguments)


def builder(
    plan: TrainingPlan, settings: GRPO, folder: Path, check: Grader
) -> Callable[[list[TrainerCallback]], Trainer]:
    args = config(plan, settings, folder)

    def build(callbacks: list[TrainerCallback]) -> Trainer:
        model, tokenizer = load_base(plan)
        return GRPOTrainer(
            model=model,
            reward_funcs=reward_function(plan.rewards, check),
            args=args,
            train_dataset=read_rows(plan, ["prompt", "reference", "verifier"]),
            processing_class=tokenizer,
            peft_config=lora_config(plan),
            callbacks=callbacks,
        )

    return build


def reward_function(settings: Rewards, check: Grader) -> Callable[..., list[float | None]]:
    """The composite as TRL calls it; None leaves a completion whose check failed out of its group."""

    def composite(
        completions: list[list[dict[str, str]]],
        reference: list[str],
        verifier: list[VerifierKind],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        texts = [messages[-1]["content"] for messages in completions]
        checks = [Check(*each) for each in zip(texts, reference, verifier, strict=True)]
        rewards = [score_fresh(*each, settings) for each in zip(checks, check(checks), strict=True)]
        right = [value for reward in rewards if (value := reward.findings["correct"].value) is not None]
        if log_metric is not None and right:
            log_metric("accuracy", fmean(right))
        if log_metric is not None:  # a policy that learns to break its checks shows here first
            log_metric("abstained", fmean(reward.final_reward is None for reward in rewards))
        return [reward.final_reward for reward in rewards]

    return composite
