"""What NeMo RL leaves: its output lines read as metrics in our names (an unknown line is passed over), and its
checkpoints, of which it resumes the highest number without a look inside."""

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.training.nemo.render import METRIC

Row = dict[str, float]

_BULLET = re.compile(r"\s*[•-]\s+(?P<label>[^:]+):\s+(?P<value>[-+\w.]+)(?P<unit>%?)")
_STEP = re.compile(r"=+ Step \d+/\d+ =+\s*$")
_SECTION = re.compile(r"\W*(Training Results|Validation Results|Validation Timing|Timing|Performance Metrics)\b.*:\s*$")

LABELS = {
    "Training Results": {
        "loss": ("loss",),
        "avg reward": ("reward", "accuracy"),
        "avg total reward": ("reward", "accuracy"),
        "mean generation length": ("completions/mean_length",),
    },
    "Timing": {
        "total step time": ("seconds/step",),
        "generation": ("seconds/generate",),
        "reward_calculation": ("seconds/reward",),
        "policy_and_reference_logprobs": ("seconds/logprobs",),
        "policy_training": ("seconds/update",),
        "checkpointing": ("seconds/save",),
    },
    "Performance Metrics": {
        "e2e (tokens/sec/gpu)": ("tokens_per_s_per_device",),
        "e2e (tokens/sec)": ("tokens_per_s",),
        "training model floating point utilization": ("mfu",),
    },
    "Validation Results": {
        "accuracy": ("held_out/accuracy",),
        "average response length": ("held_out/length",),
    },
    "Validation Timing": {"total validation time": ("seconds/validation",)},
}
"""By section of its output and lower-case label: our metrics."""
Say = Callable[[str], None]
INFO = "training_info.json"
WEIGHTS = Path("policy", "weights", "model")
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
PARTS = ("config.yaml", "train_dataloader.pt", "policy/optimizer", "policy/tokenizer")
"""Of a checkpoint. Without an optimizer NeMo RL begins with a fresh one."""
UNSEEN = ("kl", "entropy", "grad_norm", "frac_reward_zero_std", "completions/clipped_ratio", "text/distinct")
"""Metrics with a limit in `training.sentinel` that it sends to logging services alone."""


class Output:
    """Reads lines from `step` on, which is where the training resumes. Its own count starts again with each epoch."""

    def __init__(self, step: int) -> None:
        self.step = step
        """The last one whose results were read."""
        self._section = ""
        self._row: Row = {}
        self._results = False

    def read(self, line: str) -> Row | None:
        """Take a line; returns a step's row once the next step begins."""
        if _STEP.search(line):
            return self.flush()
        if header := _SECTION.match(line):
            self._section = header[1]
            if self._section == "Training Results":
                self.step, self._results = self.step + 1, True
        elif match := _BULLET.match(line):
            text = match["value"].rstrip("s") if self._section.endswith("Timing") else match["value"]
            with suppress(ValueError):
                value = float(text) / (100 if match["unit"] else 1)
                names = LABELS.get(self._section, {}).get(match["label"].strip().lower(), ())
                self._row |= dict.fromkeys(names, value)
        return None

    def flush(self) -> Row | None:
        """The row that is open, if its step was finished."""
        row = self._row
        done = self._results or any(name.startswith("held_out/") for name in row)  # asked before the first step
        self._row, self._results, self._section = {}, False, ""
        if not done:
            return None
        extra = row.get("seconds/save", 0.0) + row.get("seconds/validation", 0.0)
        if "seconds/step" in row:  # NeMo RL counts them in
            row["seconds/step"] = max(0.0, row["seconds/step"] - extra)
        return {"step": float(self.step), **row}


def begins(line: str) -> bool:
    """Whether the training loop has been reached."""
    return bool(_STEP.search(line)) or "Starting validation at step" in line


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
            found.append(SavedCheckpoint(step, folder, json.loads((folder / INFO).read_text())))
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
        reached = json.loads((folder / INFO).read_text())["total_steps"]
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
