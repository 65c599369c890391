"""DPO (arXiv 2305.18290) through TRL: logged pairs, the reference model being the policy with its adapter off.

Ranking its pairs right says little of a policy: chosen and rejected can fall together while that share reads 1.0. So
it is judged by held-out generation, as GRPO is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from pipeline.recipe import DPO
from pipeline.training.fit import Build, common_args, context_of, load_base, lora_config, micro_batch, read_rows
from pipeline.training.plan import TrainingPlan
from pipeline.training.rates import Clock


def config(plan: TrainingPlan, settings: DPO, folder: Path) -> DPOConfig:
    """TRL's own config; raises ValueError or TypeError for what it doesn't take, before any weight is loaded."""
    arguments: dict[str, Any] = {
        **common_args(plan, folder),
        "learning_rate": settings.learning_rate,
        "beta": settings.beta,
        "loss_type": list(settings.loss_type),
        "loss_weights": list(settings.loss_weights),
        "max_length": settings.max_tokens or context_of(plan),
        "train_sampling_strategy": "sequential",  # the plan's rows are already in the order of the steps
        **settings.trainer_args,
        **micro_batch(settings.trainer_args, settings.batch_size, plan.world_size),
    }
    return DPOConfig(**arguments)


def builder(plan: TrainingPlan, settings: DPO, folder: Path) -> Build:
    """Raises ValueError or TypeError for settings that cannot be trained with, before any weight is loaded."""
    args = config(plan, settings, folder)

    def build(callbacks: list[TrainerCallback], clock: Clock) -> Trainer:
        model, tokenizer = load_base(plan)
        return DPOTrainer(
            model=model,
            args=args,
            train_dataset=read_rows(plan, ["prompt", "chosen", "rejected"]),
            processing_class=tokenizer,
            peft_config=lora_config(plan.training.lora),
            callbacks=callbacks,
        )

    return build
