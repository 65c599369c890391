"""A GRPO plan as NeMo RL's configuration, by its example's `defaults`, and command lines. A setting is rendered,
refused with its name, or without effect; a key that the example sets for itself is set, if only to null.

Departure: KL and advantages are clamped as the example says."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from pipeline.core.storage import DatasetRef, ModelRef
from pipeline.recipe import Recipe
from pipeline.recipe.methods import GRPO, Method
from pipeline.training.nemo import data, start
from pipeline.training.nemo.limits import CHECKOUT, EXAMPLE, LOSSES, checkout_fault, limits
from pipeline.training.plan import TrainingPlan

Tree = dict[str, Any]

PYTHON = ("uv", "run", "python", "-u")
"""NeMo RL's environments are uv's; unbuffered, because its output is followed."""
FREE = ("data.train", "data.validation", "data.default", "env")
"""Sections whose keys depend on data set and environment: the example shows those of its own."""
METRIC = "val:accuracy"
PLAN, STATISTICS = "plan.json", "statistics.json"
"""In the workspace: what the scorers read, and what they say of the newest batch."""
ENVIRONMENTS = {start.REWARD: "reward", start.ACCURACY: "accuracy"}
MICRO_BATCH = 4
"""Sequences of a device's forward pass, where trainer_args say nothing: the example's."""
TRLS = {
    "grpo.max_num_epochs": 1,  # the rows are in the order of the steps; dynamic sampling wants more of them
    "grpo.normalize_rewards": True,
    "grpo.use_leave_one_out_baseline": False,
    "grpo.use_dynamic_sampling": False,
    "loss_fn.ratio_clip_min": 0.2,
    "loss_fn.ratio_clip_max": 0.2,
    "policy.optimizer.kwargs.weight_decay": 0.0,
    "policy.optimizer.kwargs.betas": [0.9, 0.999],
}
"""TRL's own, where trainer_args say nothing else. A weight decay also counts for norms and biases here, which TRL
leaves out: with an adapter there are none."""


def grpo_of(plan: TrainingPlan) -> GRPO:
    """The settings of a plan that is not refused."""
    method = plan.trained_by()
    assert isinstance(method, GRPO), "another method is refused"
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
        "env": {name: {"command": scorer(space, what)} for name, what in ENVIRONMENTS.items()},
        "policy": _policy(plan, grpo),
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
    free = {
        **TRLS,
        "policy.train_micro_batch_size": micro_batch,
        data.TOTAL: max_tokens,
        data.TOKENIZER: plan.base.uri,
    }
    for key, value in {**free, **grpo.trainer_args}.items():
        _set(tree, key, value)
    return tree


def command(config_path: str, python: Sequence[str] = PYTHON) -> list[str]:
    """Of the training, in the checkout."""
    return [*python, "-m", start.__name__, "--config", config_path]


def scorer(workspace: PurePath, what: str) -> list[str]:
    """Command line of the process that an environment asks: what completions are worth, or their accuracy."""
    files = (workspace / PLAN, workspace / STATISTICS)
    return [sys.executable, "-m", "pipeline.training.nemo.scorer", *map(str, files), what]


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


def recipe_faults(recipe: Recipe, methods: Iterable[Method]) -> list[str]:
    """Why NeMo RL could not train a recipe by each of these methods, one line each with what to change."""
    training, compute = recipe.training, recipe.compute
    looks, devices = training.validation.every_steps > 0, compute.nodes * compute.processes
    unfit = (line for method in methods for line in limits(training, method, devices, looks))
    faults = list(dict.fromkeys(unfit))
    if not faults:
        try:
            configuration(_sketch(recipe), "/run", CHECKOUT, 1)
        except ValueError as error:
            faults.append(f"training.grpo.{error}")
    if compute.kubernetes is None and (fault := checkout_fault(Path(CHECKOUT))):
        faults.append(f"training.engine nemo_rl: {fault}")
    return faults


def _sketch(recipe: Recipe) -> TrainingPlan:
    """The plan of a training by GRPO as far as the recipe decides it."""
    training, compute = recipe.training, recipe.compute
    rows = DatasetRef(uri="/rows", rows=training.validation.prompts, digest="")
    return TrainingPlan.model_construct(
        base=ModelRef(uri=recipe.base_model.uri, digest=""),
        data=rows,
        held_out=rows if training.validation.every_steps else None,
        method=training.grpo,
        training=training.without_methods(),
        rewards=recipe.rewards,
        nodes=compute.nodes,
        processes=compute.processes,
    )


def refuse(plan: TrainingPlan) -> None:
    """Raise ValueError that lists every setting NeMo RL cannot express, and what to change."""
    looks = plan.held_out is not None
    if problems := limits(plan.training, plan.trained_by(), plan.world_size, looks):
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


def _policy(plan: TrainingPlan, grpo: GRPO) -> Tree:
    """Model, batches, optimizer and LoRA, as the Trainer and PEFT mean them: both engines train the same thing."""
    extra, lora = grpo.trainer_args, plan.training.lora
    steps = grpo.batches  # a step of its scheduler is a batch of generation
    tree: Tree = {
        "model_name": plan.base.uri,
        "precision": "bfloat16",
        "train_global_batch_size": grpo.examples_per_update,
        "dtensor_cfg": {
            "_v2": True,  # the first one ignores lora_cfg, trains every weight and says nothing
            "enabled": True,
            "cpu_offload": plan.training.distribution.cpu_offload,
            "lora_cfg": {"enabled": False},
        },
        "max_grad_norm": 1.0,
        "optimizer": {
            "name": "torch.optim.AdamW",
            "kwargs": {"lr": grpo.learning_rate, "eps": 1e-8},
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
