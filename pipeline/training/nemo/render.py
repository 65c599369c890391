"""A GRPO plan as NeMo RL's configuration, by its example's `defaults`, and command lines. A setting is rendered,
refused with its name, or named in `WITHOUT_EFFECT`; a key that the example sets for itself is set, if only to null.

Departure: KL and advantages are clamped as the example says."""

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from pipeline.recipe.methods import GRPO
from pipeline.training.nemo import data
from pipeline.training.plan import TrainingPlan

Tree = dict[str, Any]

PYTHON = ("uv", "run", "python", "-u")
"""NeMo RL's environments are uv's; unbuffered, because its output is followed."""
EXAMPLE = "examples/configs/grpo_math_1B.yaml"
"""In the checkout; its keys are inherited."""
FREE = ("data.train", "data.validation", "data.default")
"""Sections whose keys depend on the data set: the example shows those of its own."""
METRIC = "val:accuracy"
MICRO_BATCH = 4
"""Sequences of a device's forward pass, where trainer_args say nothing: the example's."""
TRLS = {
    "grpo.max_num_epochs": 1,  # the rows are in the order of the steps; dynamic sampling wants more of them
    "grpo.normalize_rewards": True,
    "grpo.use_leave_one_out_baseline": False,
    "grpo.use_dynamic_sampling": False,
    "loss_fn.ratio_clip_min": 0.2,
    "loss_fn.ratio_clip_max": 0.2,
}
"""TRL's own, where trainer_args say nothing else."""
LOSSES = {"dapo": True, "grpo": False}
"""Our `loss_type` to NeMo RL's `token_level_loss`."""
WITHOUT_EFFECT = {
    "grpo.kl_stop": "of a training on scores, which it is refused",
    "validation.prompts": "the plan's held-out file is cut to it already",
    "training.threads": "of a training on CPU",
    "training.timeout_s": "the launcher's",
    "training.sentinel": "looks at the rows that come back; its rules on what NeMo RL does not print are silent",
    "training.grace_s": "read when SIGTERM comes: how long a save under way may take",
    "training.engine": "the choice of this engine",
}
"""Settings that change nothing in NeMo RL's configuration, and why that loses nothing."""


def grpo_of(plan: TrainingPlan) -> GRPO:
    """The plan's settings. Raises ValueError for another method than GRPO."""
    method = plan.trained_by()
    if not isinstance(method, GRPO):
        raise ValueError(
            f"training.engine nemo_rl: {method.title} is not rendered for NeMo RL. Set training.engine trl."
        )
    return method


def workspace(plan: TrainingPlan, folder: str) -> str:
    """Where NeMo RL keeps what is its own. By plan: it resumes from whatever checkpoint it finds, asking nothing."""
    return str(PurePath(folder) / "nemo" / plan.digest()[:12])


def configuration(plan: TrainingPlan, folder: str, checkout: str, max_tokens: int) -> Tree:
    """The configuration of a training in `folder`. `max_tokens`: of its longest sequence, prompt and completion. Raises
    ValueError for what NeMo RL cannot express, and for trainer_args that contradict the plan."""
    refuse(plan)
    grpo, space = grpo_of(plan), PurePath(workspace(plan, folder))
    tree: Tree = {
        "defaults": str(PurePath(checkout) / EXAMPLE),
        "grpo": _algorithm(plan, grpo),
        "loss_fn": {
            "reference_policy_kl_penalty": grpo.beta,
            "reference_policy_kl_type": "k3",
            "token_level_loss": LOSSES[grpo.loss_type],
        },
        "env": {"math": {"math_verify_impl": "hf_math_verify", "num_workers": plan.rewards.verifier.workers}},
        "policy": _policy(plan, grpo, max_tokens),
        "checkpointing": _checkpointing(plan, str(space / "checkpoints")),
        "data": data.section(plan, str(space)),
        "logger": {
            "log_dir": str(space / "logs"),
            "num_val_samples_to_print": 0,
            **{f"{service}_enabled": False for service in ("wandb", "tensorboard", "mlflow", "swanlab")},
            "monitor_gpus": False,
        },
        "cluster": {"num_nodes": plan.nodes, "gpus_per_node": plan.processes},
    }
    micro_batch = math.gcd(grpo.examples_per_update // plan.world_size, MICRO_BATCH)
    free = {**TRLS, "policy.train_micro_batch_size": micro_batch}
    for key, value in {**free, **grpo.trainer_args}.items():
        _set(tree, key, value)
    return tree


def command(config_path: str, python: Sequence[str] = PYTHON) -> list[str]:
    """Of the training, in the checkout."""
    return [*python, "examples/run_grpo.py", "--config", config_path]


def conversion(step_folder: PurePath, out: str, python: Sequence[str] = PYTHON) -> list[str]:
    """All weights of a checkpoint to Hugging Face, run in the checkout. An adapter is saved as PEFT's own files."""
    return [
        *python, "examples/converters/convert_dcp_to_hf.py",
        "--config", str(step_folder / "config.yaml"),
        "--dcp-ckpt-path", str(step_folder / "policy" / "weights"),
        "--hf-ckpt-path", out,
    ]  # fmt: skip


def unknown_keys(tree: Mapping[str, Any], example: Mapping[str, Any]) -> list[str]:
    """Dotted keys of the configuration that the example does not have."""
    known, free = set(_keys(example)), tuple(f"{section}." for section in FREE)
    return [key for key in _keys(tree) if key not in known and key != "defaults" and not key.startswith(free)]


def refuse(plan: TrainingPlan) -> None:
    """Raise ValueError that lists every setting NeMo RL cannot express, and what to change. Its math environment has
    one turn, and pays 1 for a right answer and 0 for any other."""
    grpo, training, rewards, devices = grpo_of(plan), plan.training, plan.rewards, plan.world_size
    lora, validation, checkpoints, strategy = (
        training.lora, training.validation, training.checkpoints, training.distribution.strategy,
    )  # fmt: skip
    paid = {name for name, weight in rewards.verified.model_dump().items() if weight}
    save, look = (grpo.batches_in(each.every_steps) for each in (checkpoints, validation))
    looks = plan.held_out is not None
    resources = [f"policy.generation.colocated.resources.{name}" for name in ("gpus_per_node", "num_nodes")]
    undivided = grpo.generation == "vllm_server" and not any(key in grpo.trainer_args for key in resources)
    limits = {
        f"lora.quantise {lora and lora.quantise!r}: its LoRA trains on an unquantised base. Set none.": (
            lora is not None and lora.quantise != "none"
        ),
        f"lora.target_modules {lora and lora.target_modules!r}: it knows other patterns. Set all-linear.": (
            lora is not None and lora.target_modules != "all-linear"
        ),
        f"distribution.strategy {strategy!r}: its DTensor backend shards everything. Set fsdp2.": (
            strategy == "zero2" or (strategy == "ddp" and devices > 1)
        ),
        "checkpoints.interruption_every_s: it saves every so many steps. Unset it, and set every_steps.": (
            checkpoints.interruption_every_s is not None
        ),
        "checkpoints.mirror: it copies nothing. Unset it, and put data_root on a shared volume.": (
            checkpoints.mirror is not None
        ),
        f"grpo.loss_type {grpo.loss_type!r}: set one of {', '.join(LOSSES)}.": grpo.loss_type not in LOSSES,
        "grpo.generation 'transformers': it draws completions with vLLM. Set vllm_colocate.": (
            grpo.generation == "transformers"
        ),
        f"grpo.generation 'vllm_server': give it devices, in trainer_args {' or '.join(resources)}.": undivided,
        f"grpo: {grpo.examples_per_update} completions an update do not split over {devices} devices.": (
            grpo.examples_per_update % devices != 0
        ),
        f"validation.max_completion_tokens {validation.max_completion_tokens}: it validates as it trains. Set "
        f"{grpo.max_completion_tokens} as in grpo.": (
            looks and validation.max_completion_tokens != grpo.max_completion_tokens
        ),
        f"grpo.temperature {grpo.temperature}: held-out answers would be drawn at it too. Set 1.0.": (
            looks and grpo.temperature != 1.0
        ),
        f"checkpoints.every_steps: a checkpoint every {save} batches of generation is not one in every {look}, when "
        "held-out prompts are asked, and would have no accuracy. Set a multiple.": looks and save % look != 0,
    }
    problems = [f"training.{text}" for text, wrong in limits.items() if wrong]
    if paid != {"correct"}:
        others = ", ".join(sorted(paid - {"correct"})) or "nothing"
        problems.append(f"rewards.verified pays {others}: it knows right and wrong. Keep correct alone above 0.")
    if rewards.verifier.kind != "math":
        problems.append(f"rewards.verifier.kind {rewards.verifier.kind!r}: it checks with math-verify. Set math.")
    if problems:
        raise ValueError(
            "\n".join(["NeMo RL cannot train this plan; change these, or set training.engine trl:", *problems])
        )


def _algorithm(plan: TrainingPlan, grpo: GRPO) -> Tree:
    validation, looks = plan.training.validation, plan.held_out is not None
    settings: Tree = {
        "num_prompts_per_step": grpo.prompts_per_step,
        "num_generations_per_prompt": grpo.num_generations,
        "max_num_steps": grpo.batches,
        "val_period": grpo.batches_in(validation.every_steps) if looks else 0,
        "val_at_start": looks,  # what the base model can do
        "val_at_end": looks,
        "seed": plan.training.seed,
    }
    if plan.held_out is not None:
        # NeMo RL asks max_val_samples // val_batch_size batches: with a larger batch it asks none and reports 0.
        asked = plan.held_out.rows * validation.samples
        settings |= {"max_val_samples": asked, "val_batch_size": asked}
    return settings


def _policy(plan: TrainingPlan, grpo: GRPO, max_tokens: int) -> Tree:
    """Model, batches, optimizer and LoRA, as the Trainer and PEFT mean them: both engines train the same thing."""
    extra, lora = grpo.trainer_args, plan.training.lora
    steps = grpo.batches  # a step of its scheduler is a batch of generation
    tree: Tree = {
        "model_name": plan.base.uri,
        "tokenizer": {"name": plan.base.uri},
        "precision": "bfloat16",
        "train_global_batch_size": grpo.examples_per_update,
        "max_total_sequence_length": max_tokens,
        "dtensor_cfg": {
            "_v2": True,  # the first one ignores lora_cfg, trains every weight and says nothing
            "enabled": True,
            "cpu_offload": plan.training.distribution.cpu_offload,
            "lora_cfg": {"enabled": False},
        },
        "max_grad_norm": 1.0,
        "optimizer": {
            "name": "torch.optim.AdamW",
            "kwargs": {"lr": grpo.learning_rate, "weight_decay": 0.0, "betas": [0.9, 0.999], "eps": 1e-8},
        },
        "scheduler": [  # NeMo RL chains schedulers, which takes a second one and a milestone
            {
                "name": "torch.optim.lr_scheduler.LinearLR",
                "kwargs": {"start_factor": 1.0, "end_factor": 0.0, "total_iters": steps},
            },
            {
                "name": "torch.optim.lr_scheduler.ConstantLR",
                "kwargs": {"factor": 1.0, "total_iters": 10_000_000_000},
            },
            {"milestones": [steps]},
        ],
        "generation": {
            "backend": "vllm",
            "max_new_tokens": grpo.max_completion_tokens,
            "temperature": grpo.temperature,
            "colocated": {"enabled": grpo.generation == "vllm_colocate"},
        },
    }
    if lora is not None:
        tree["dtensor_cfg"]["lora_cfg"] = {
            "enabled": True,
            "match_all_linear": True,
            "dim": lora.r,
            "alpha": lora.alpha,
            "dropout": lora.dropout,
            "dropout_position": "pre",
            "lora_A_init": "uniform",
            # its kernels know no tensor parallelism
            "use_triton": int(extra.get("policy.dtensor_cfg.tensor_parallel_size", 1)) == 1,
        }
    return tree


def _checkpointing(plan: TrainingPlan, folder: str) -> Tree:
    """By accuracy NeMo RL keeps the best and the newest one; without it, the newest ones."""
    settings, looks = plan.training.checkpoints, plan.held_out is not None
    return {
        "enabled": True,
        "checkpoint_dir": folder,
        "metric_name": METRIC if looks else None,
        "higher_is_better": True,
        "keep_top_k": settings.keep_last + settings.keep_best - 1 if looks else settings.keep_last,
        "save_period": plan.trained_by().batches_in(settings.every_steps),
        "checkpoint_must_save_by": None,
        "model_save_format": "torch_save" if plan.training.lora is None else "safetensors",
        "save_consolidated": False,
        "save_optimizer": True,
    }


def _set(tree: Tree, dotted: str, value: Any) -> None:
    *parents, leaf = dotted.split(".")
    node = tree
    for parent in parents:
        node = node.setdefault(parent, {})
        if not isinstance(node, dict):
            raise ValueError(f"trainer_args {dotted!r}: {parent!r} is a value, not a section. Check the path.")
    if leaf in node:
        raise ValueError(f"trainer_args {dotted!r} is decided by the recipe ({node[leaf]!r}). Change it there.")
    node[leaf] = value


def _keys(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, value in tree.items():
        keys += [f"{prefix}{name}", *(_keys(value, f"{prefix}{name}.") if isinstance(value, dict) else ())]
    return keys
