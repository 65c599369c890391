"""What NeMo RL leaves: the steps that its loggers are given, as metrics in our names, and its checkpoints, of which it
resumes the highest number without a look inside."""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.training.nemo.render import METRIC
from pipeline.training.nemo.start import LOGGED

Row = dict[str, float]

NAMES = {
    "train/loss": "loss",
    "train/reward": "reward",
    "train/grad_norm": "grad_norm",
    "train/kl_penalty": "kl",
    "train/approx_entropy": "entropy",
    "train/mean_gen_tokens_per_sample": "completions/mean_length",
    "train/truncation_rate": "completions/clipped_ratio",
    "timing/train/total_step_time": "seconds/step",
    "timing/train/generation": "seconds/generate",
    "timing/train/reward_calculation": "seconds/reward",
    "timing/train/policy_and_reference_logprobs": "seconds/logprobs",
    "timing/train/policy_training": "seconds/update",
    "timing/train/checkpointing": "seconds/save",
    "performance/tokens_per_sec_per_gpu": "tokens_per_s_per_device",
    "performance/tokens_per_sec": "tokens_per_s",
    "performance/train_fp_utilization": "mfu",
    "validation/accuracy": "held_out/accuracy",
    "validation/avg_length": "held_out/length",
    "timing/validation/total_validation_time": "seconds/validation",
}
"""NeMo RL's names (nemo_rl/algorithms/grpo.py and loss functions of releases 0.6.0 and 0.7.0) to ours."""
LAST = "timing/train/total_step_time"
"""In what a step logs last."""
Say = Callable[[str], None]
INFO = "training_info.json"
WEIGHTS = Path("policy", "weights", "model")
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
PARTS = ("config.yaml", "train_dataloader.pt", "policy/optimizer", "policy/tokenizer")
"""Of a checkpoint. Without an optimizer NeMo RL begins with a fresh one."""


class Output:
    """Gathers what is logged of a step, in several lines, to one row."""

    def __init__(self) -> None:
        self._row: Row = {}

    def read(self, line: str) -> Row | None:
        """Take a line; returns a step's row once all of it was logged. One that was cut is passed over."""
        try:
            logged: dict[str, float] = json.loads(line.removeprefix(LOGGED)) if line.startswith(LOGGED) else {}
        except ValueError:
            return None
        if not logged:
            return None
        values = {NAMES[name]: value for name, value in logged.items() if name in NAMES}
        before = self.flush() if self._row.get("step") not in (None, logged["step"]) else None
        if values:
            self._row |= {"step": float(logged["step"]), **values}
        return before or (self.flush() if LAST in logged else None)

    def flush(self) -> Row | None:
        """The row that is open, if its step was finished; at 0 the base model is validated."""
        row, self._row = self._row, {}
        if not row or ("loss" not in row and row["step"] > 0):
            return None
        extra = row.get("seconds/save", 0.0) + row.get("seconds/validation", 0.0)
        if "seconds/step" in row:  # NeMo RL counts them in
            row["seconds/step"] = max(0.0, row["seconds/step"] - extra)
        return row


class SavedCheckpoint(NamedTuple):
    """A whole checkpoint. `step` counts NeMo RL's own steps; `info` is what it noted of the training."""

    step: int
    folder: Path
    info: dict[str, Any]


def whole(root: Path, lora: bool, say: Say) -> list[SavedCheckpoint]:
    """Whole checkpoints, newest first. What NeMo RL must not resume from is taken from its sight, with its flaw: torn
    checkpoints are renamed, unfinished ones deleted."""
    for unfinished in sorted(root.glob("tmp_step_*")):
        say(f"checkpoint {unfinished.name} was never finished: deleted")
        shutil.rmtree(unfinished)
    found: list[SavedCheckpoint] = []
    for folder in sorted(root.glob("step_*")):
        if (flaw := find_flaw(folder, lora)) is None:
            step = int(folder.name.removeprefix("step_"))
            found.append(SavedCheckpoint(step, folder, json.loads((folder / INFO).read_bytes())))
            continue
        aside = folder.with_name(f"torn_{folder.name}")
        say(f"checkpoint {folder.name} is passed over: {flaw}; it is now {aside.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    return sorted(found, key=lambda saved: saved.step, reverse=True)


def best(saved: Sequence[SavedCheckpoint]) -> SavedCheckpoint | None:
    """The one with the highest held-out accuracy, the newest of equals; NaN and none rank worst."""

    def rank(each: SavedCheckpoint) -> tuple[float, int]:
        value = each.info.get(METRIC)
        return (-math.inf if not isinstance(value, int | float) or math.isnan(value) else value, each.step)

    return max(saved, key=rank, default=None)


def find_flaw(folder: Path, lora: bool) -> str | None:
    """Why a checkpoint must not be resumed or converted from, or None."""
    try:
        reached = json.loads((folder / INFO).read_bytes())["total_steps"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{INFO} cannot be read ({type(error).__name__})"
    if folder.name != f"step_{reached}":
        return f"{INFO} is of step {reached}"
    for name in (*PARTS, *(WEIGHTS / name for name in (ADAPTER if lora else (".metadata",)))):
        path = folder / name
        files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
        if not files or not all(each.stat().st_size for each in files):
            return f"{name} is missing or empty"
    return None
