"""The plan as NeMo RL's configuration, by its example's `defaults`, and command lines. A setting is rendered, refused
with its name, or named in `WITHOUT_EFFECT`; a key that the example sets for itself is set, if only to null."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from pipeline.training.nemo import data
from pipeline.training.nemo.methods import DPORendering, GRPORendering, Tree, rendering
from pipeline.training.plan import TrainingPlan

PYTHON = ("uv", "run", "python", "-u")
"""NeMo RL's environments are uv's; unbuffered, because its output is followed."""
EXAMPLES = (GRPORendering.example, DPORendering.example)
FREE = ("data.train", "data.validation", "data.default")
"""Sections whose keys depend on the data set: an example shows those of its own, and others in comments."""
METRIC = "val:accuracy"
MICRO_BATCH = 4
"""Sequences (DPO: pairs) of a device's forward pass, where trainer_args say nothing: the example's."""
WITHOUT_EFFECT = {
    "grpo.kl_stop": "of a training on scores, which it is refused",
    "validation.prompts": "the plan's held-out file is cut to it already",
    "training.threads": "of a training on CPU",
    "training.timeout_s": "the launcher's",
    "training.sentinel": "looks at the rows that come back; its rules on what NeMo RL does not print are silent",
    "training.grace_s": "read when SIGTERM comes: how long a save under way may take",
    "training.engine": "the choice of this engine",
    "training.nemo_rl_release": "compared with the checkout's own",
}
"""Settings that change nothing in NeMo RL's configuration, and why that loses nothing."""


def workspace(plan: TrainingPlan, folder: str) -> str:
    """Where NeMo RL keeps what is its own. By plan: it resumes from whatever checkpoint it finds, asking nothing."""
    return str(PurePath(folder) / "nemo" / plan.digest()[:12])


def configuration(plan: TrainingPlan, folder: str, checkout: str, max_tokens: int) -> Tree:
    """The configuration of a training in `folder`. `max_tokens`: of its longest sequence, prompt and completion. Raises
    ValueError for what NeMo RL cannot express, and for trainer_args that contradict the plan."""
    refuse(plan)
    method = rendering(plan)
    tree: Tree = {
        "defaults": str(PurePath(checkout) / "examples" / "configs" / method.example),
        "policy": _policy(plan, max_tokens),
        "checkpointing": _checkpointing(plan, folder),
        "data": data.section(plan, workspace(plan, folder)),
        "logger": {
            "log_dir": str(PurePath(workspace(plan, folder)) / "logs"),
            "num_val_samples_to_print": 0,
            **{f"{service}_enabled": False for service in ("wandb", "tensorboard", "mlflow", "swanlab")},
            "monitor_gpus": False,
        },
        "cluster": {"num_nodes": plan.nodes, "gpus_per_node": plan.processes},
    }
    tree |= method.sections()
    for key, value in plan.trained_by().trainer_args.items():
        _set(tree, key, value)
    return tree


def command(plan: TrainingPlan, config_path: str, python: Sequence[str] = PYTHON) -> list[str]:
    """Of the training, in the checkout."""
    return [*python, f"examples/{rendering(plan).script}", "--config", config_path]


def conversion(plan: TrainingPlan, step_folder: str, out: str, python: Sequence[str] = PYTHON) -> list[str]:
    """A checkpoint's weights to Hugging Face, run in the checkout. Of LoRA nothing needs converting, see export.py."""
    assert plan.training.lora is None, "an adapter is saved as PEFT's own files"
    step = PurePath(step_folder)
    return [
        *python, "examples/converters/convert_dcp_to_hf.py",
        "--config", str(step / "config.yaml"),
        "--dcp-ckpt-path", str(step / "policy" / "weights"),
        "--hf-ckpt-path", out,
    ]  # fmt: skip


def unknown_keys(tree: Mapping[str, Any], examples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Dotted keys of the configuration that no example has. Sections that both have are one schema in NeMo RL."""
    known = {key for example in examples for key in _keys(example)}
    ours = [key for key in _keys(tree) if key != "defaults" and not key.startswith(tuple(f"{f}." for f in FREE))]
    return [key for key in ours if key not in known]


def _policy(plan: TrainingPlan, max_tokens: int) -> Tree:
    """Model, batches, optimizer and LoRA, as the Trainer and PEFT mean them: both engines train the same thing."""
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


def _checkpointing(plan: TrainingPlan, folder: str) -> Tree:
    """By accuracy NeMo RL keeps the best and the newest one; without it, the newest ones."""
    settings, looks = plan.training.checkpoints, plan.held_out is not None
    return {
        "enabled": True,
        "checkpoint_dir": str(PurePath(workspace(plan, folder)) / "checkpoints"),
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


def refuse(plan: TrainingPlan) -> None:
    """Raise ValueError that lists every setting NeMo RL cannot express, and what to change."""
    problems = [*_shared(plan), *rendering(plan).limits()]
    if problems:
        raise ValueError(
            "\n".join(["NeMo RL cannot train this plan; change these, or set training.engine trl:", *problems])
        )


def refuse_with_rows(plan: TrainingPlan) -> None:
    """Raise ValueError as `refuse` does, and for rows that cannot be carried: asked before a cluster is."""
    refuse(plan)
    data.refuse(plan)


def _shared(plan: TrainingPlan) -> Iterator[str]:
    training, lora = plan.training, plan.training.lora
    if lora is not None and lora.quantise != "none":
        yield f"training.lora.quantise {lora.quantise!r}: its LoRA trains on an unquantised base. Set none."
    if lora is not None and lora.target_modules != "all-linear":
        yield f"training.lora.target_modules {lora.target_modules!r}: it knows other patterns. Set all-linear."
    strategy = training.distribution.strategy
    if strategy in ("zero2", "zero3") or (strategy == "ddp" and plan.world_size > 1):
        yield f"training.distribution.strategy {strategy!r}: its DTensor backend shards everything. Set fsdp2."
    if training.checkpoints.interruption_every_s is not None:
        yield "training.checkpoints.interruption_every_s: it saves every so many steps. Unset it, and set every_steps."
    if training.validation.scorer is not None:
        yield f"training.validation.scorer {training.validation.scorer!r}: it asks no second scorer. Unset it."
    if plan.answer_kl_stop is not None:
        yield f"training.{plan.trained_by().kind}.kl_stop: it measures no KL of held-out answers. Set null."
    if training.tools is not None:
        yield "training.tools: its math environment has one turn, and replays no recorded results. Set null."
    if training.checkpoints.mirror is not None:
        yield "training.checkpoints.mirror: it copies nothing. Unset it, and put data_root on a shared volume."
