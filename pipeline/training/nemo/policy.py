"""The `policy` section of NeMo RL's configuration: model, batches, optimizer, LoRA and generation.

Optimizer and schedule are the Trainer's own (AdamW without weight decay, linear to 0), LoRA is as PEFT means it, so
both engines train the same thing from the same recipe.
"""

from __future__ import annotations

import math
from typing import Any

from pipeline.recipe import GRPO
from pipeline.training.nemo.limits import batches
from pipeline.training.plan import TrainingPlan

Tree = dict[str, Any]
MICRO_BATCH = 4
"""Sequences (DPO: pairs) of a device's forward pass, where trainer_args say nothing: the example's."""


def section(plan: TrainingPlan, max_tokens: int) -> Tree:
    """`max_tokens`: of the longest sequence, prompt and completion."""
    algorithm, extra = plan.algorithm, plan.algorithm.trainer_args
    dtensor: Tree = {
        "_v2": True,  # the first one ignores lora_cfg, trains every weight and says nothing
        "enabled": True,
        "cpu_offload": plan.training.distribution.cpu_offload,
        "lora_cfg": _lora(plan, int(extra.get("policy.dtensor_cfg.tensor_parallel_size", 1))),
    }
    tree: Tree = {
        "model_name": plan.base.uri,
        "tokenizer": {"name": plan.base.uri},
        "precision": "bfloat16",
        "train_global_batch_size": update_size(plan),
        "max_total_sequence_length": max_tokens,
        "dtensor_cfg": dtensor,
        "max_grad_norm": 1.0,
        "optimizer": {
            "name": "torch.optim.AdamW",
            "kwargs": {"lr": algorithm.learning_rate, "weight_decay": 0.0, "betas": [0.9, 0.999], "eps": 1e-8},
        },
        "scheduler": _scheduler(batches(algorithm.steps, algorithm)),
    }
    if "policy.train_micro_batch_size" not in extra:
        tree["train_micro_batch_size"] = math.gcd(update_size(plan) // plan.world_size, MICRO_BATCH)
    if isinstance(algorithm, GRPO):
        tree["generation"] = {
            "backend": "vllm",
            "max_new_tokens": algorithm.max_completion_tokens,
            "temperature": algorithm.temperature,
            "colocated": {"enabled": algorithm.generation == "vllm_colocate"},
        }
    return tree


def update_size(plan: TrainingPlan) -> int:
    """Completions, or pairs, of one optimizer step."""
    algorithm = plan.algorithm
    if isinstance(algorithm, GRPO):
        return algorithm.prompts_per_step * algorithm.num_generations // algorithm.num_minibatches
    return algorithm.batch_size


def _lora(plan: TrainingPlan, tensor_parallel: int) -> Tree:
    lora = plan.training.lora
    if lora is None:
        return {"enabled": False}
    return {
        "enabled": True,
        "match_all_linear": True,
        "dim": lora.r,
        "alpha": lora.alpha,
        "dropout": lora.dropout,
        "dropout_position": "pre",
        "lora_A_init": "uniform",
        "use_triton": tensor_parallel == 1,  # its kernels know no tensor parallelism
    }


def _scheduler(steps: int) -> list[Tree]:
    """NeMo RL chains schedulers, which takes a second one and a milestone. A step of it is a batch of generation."""
    linear = {"start_factor": 1.0, "end_factor": 0.0, "total_iters": steps}
    return [
        {"name": "torch.optim.lr_scheduler.LinearLR", "kwargs": linear},
        {"name": "torch.optim.lr_scheduler.ConstantLR", "kwargs": {"factor": 1.0, "total_iters": 10_000_000_000}},
        {"milestones": [steps]},
    ]
