"""The `policy` section of NeMo RL's configuration: model, batches, optimizer, LoRA and generation.

Optimizer and schedule are the Trainer's own (AdamW without weight decay, linear to 0), LoRA is as PEFT means it, so
both engines train the same thing from the same recipe.
"""

from __future__ import annotations

import math

from pipeline.training.nemo.rendering import Tree, rendering
from pipeline.training.plan import TrainingPlan

MICRO_BATCH = 4
"""Sequences (DPO: pairs) of a device's forward pass, where trainer_args say nothing: the example's."""


def section(plan: TrainingPlan, max_tokens: int) -> Tree:
    """`max_tokens`: of the longest sequence, prompt and completion."""
    method = plan.trained_by()
    extra = method.trainer_args
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
        "train_global_batch_size": method.examples_per_update,
        "max_total_sequence_length": max_tokens,
        "dtensor_cfg": dtensor,
        "max_grad_norm": 1.0,
        "optimizer": {
            "name": "torch.optim.AdamW",
            "kwargs": {"lr": method.learning_rate, "weight_decay": 0.0, "betas": [0.9, 0.999], "eps": 1e-8},
        },
        "scheduler": _scheduler(method.batches_in(method.steps)),
    }
    if "policy.train_micro_batch_size" not in extra:
        tree["train_micro_batch_size"] = math.gcd(method.examples_per_update // plan.world_size, MICRO_BATCH)
    return tree | rendering(plan).policy()


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
