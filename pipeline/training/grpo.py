"""GRPO (arXiv 2402.03300) through TRL: fresh completions of logged prompts, scored by the pipeline's own composite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig

from pipeline.recipe import GRPO
from pipeline.serving.decoding import stop_ids
from pipeline.training.fit import (
    Build,
    check_context,
    common_args,
    load_base,
    load_tokenizer,
    lora_config,
    micro_batch,
    read_rows,
)
from pipeline.training.group import GroupTrainer
from pipeline.training.plan import TrainingPlan
from pipeline.training.rates import Clock

RewardFunction = Callable[..., list[float | None]]
"""As TRL calls it: completions, the columns of their rows, `log_metric`; None leaves a completion out of its group."""


def config(plan: TrainingPlan, settings: GRPO, folder: Path) -> GRPOConfig:
    """TRL's own config; raises ValueError or TypeError for what it doesn't take, before any weight is loaded."""
    update = settings.prompts_per_step * settings.num_generations // settings.num_minibatches
    batch = micro_batch(settings.trainer_args, update, plan.world_size)
    arguments: dict[str, Any] = {
        **common_args(plan, folder),
        "num_generations": settings.num_generations,
        "num_iterations": settings.num_iterations,
        "max_completion_length": settings.max_completion_tokens,
        "learning_rate": settings.learning_rate,
        "temperature": settings.temperature,
        "beta": settings.beta,
        "epsilon": settings.epsilon,
        "epsilon_high": settings.epsilon_high,
        "loss_type": settings.loss_type,
        "scale_rewards": settings.scale_rewards,
        "mask_truncated_completions": settings.mask_truncated_completions,
        "use_vllm": settings.generation != "transformers",
        "shuffle_dataset": False,  # the plan's rows are already in the order of the steps
        **settings.trainer_args,
        **batch,
        "steps_per_generation": batch["gradient_accumulation_steps"] * settings.num_minibatches,
    }
    if settings.generation != "transformers":
        arguments["vllm_mode"] = settings.generation.removeprefix("vllm_")
        stops = list(stop_ids(plan.base.uri, load_tokenizer(plan)))  # vLLM reads config.json only if there is no other
        arguments["generation_kwargs"] = {"stop_token_ids": stops, **arguments.get("generation_kwargs", {})}
    return GRPOConfig(**arguments)


def builder(plan: TrainingPlan, settings: GRPO, folder: Path, reward: RewardFunction) -> Build:
    """Raises ValueError or TypeError for settings that cannot be trained with, before any weight is loaded."""
    args = config(plan, settings, folder)
    assert plan.data is not None, "only a plan that trains comes here"
    check_context(plan, plan.data, settings.max_completion_tokens)

    def build(callbacks: list[TrainerCallback], clock: Clock) -> Trainer:
        model, tokenizer = load_base(plan)
        return GroupTrainer(
            model=model,
            reward_funcs=reward,
            args=args,
            train_dataset=read_rows(plan, ["prompt", "reference", "verifier"]),
            processing_class=tokenizer,
            peft_config=lora_config(plan.training.lora),
            callbacks=callbacks,
            settings=settings,
            clock=clock,
            name=plan.digest(),
        )

    return build
