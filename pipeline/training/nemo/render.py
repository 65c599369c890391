"""The plan as NeMo RL's configuration and command lines. Pure: objects in, objects out.

Owns every key that the plan decides. All others are inherited through `defaults` from the checkout's own example, so
they fit its release; `unknown_keys` says which of ours that release does not have. Inheritance merges, so a key that
the example sets for itself and that would speak here too is set, if only to null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from pipeline.training.nemo import data, policy
from pipeline.training.nemo.dpo import DPORendering
from pipeline.training.nemo.grpo import GRPORendering
from pipeline.training.nemo.limits import refuse
from pipeline.training.nemo.rendering import Tree, rendering
from pipeline.training.plan import TrainingPlan

PYTHON = ("uv", "run", "python", "-u")
"""NeMo RL's environments are uv's; unbuffered, because its output is followed."""
EXAMPLES = (GRPORendering.example, DPORendering.example)
FREE = ("data.train", "data.validation", "data.default")
"""Sections whose keys depend on the data set: an example shows those of its own, and others in comments."""
METRIC = "val:accuracy"


def workspace(plan: TrainingPlan, folder: str) -> str:
    """Where NeMo RL keeps what is its own. By plan: it resumes from whatever checkpoint it finds, asking nothing."""
    return str(PurePath(folder) / "nemo" / plan.digest()[:12])


def configuration(plan: TrainingPlan, folder: str, checkout: str, max_tokens: int) -> Tree:
    """The configuration of a training in `folder`. `max_tokens`: of its longest sequence, prompt and completion.

    Raises ValueError for what NeMo RL cannot express, and for trainer_args that contradict the plan.
    """
    refuse(plan)
    method = rendering(plan)
    tree: Tree = {
        "defaults": str(PurePath(checkout) / "examples" / "configs" / method.example),
        "policy": policy.section(plan, max_tokens),
        "checkpointing": _checkpointing(plan, folder),
        "data": data.section(plan, workspace(plan, folder)),
        "logger": {
            "log_dir": str(PurePath(workspace(plan, folder)) / "logs"),
            "num_val_samples_to_print": 0,
            "wandb_enabled": False,
            "tensorboard_enabled": False,
            "mlflow_enabled": False,
            "swanlab_enabled": False,
            "monitor_gpus": False,
        },
        "cluster": {"num_nodes": plan.nodes, "gpus_per_node": plan.processes},
    }
    tree |= method.sections()
    for key, value in plan.trained_by().trainer_args.items():
        _set(tree, key, value)
    return tree


def command(plan: TrainingPlan, config_path: str, python: Sequence[str] = PYTHON) -> list[str]:
    """The training, run in the checkout."""
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
