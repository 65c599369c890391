"""NeMo RL's checkpoints: which ones are whole, which is the newest and which the best.

It writes `tmp_step_N`, renames it to `step_N` when every writer is done, and resumes from the highest number without a
look inside; nothing is synced, so a machine that dies may leave a `step_N` with holes. Owns what a whole one consists
of, and sets the others aside before NeMo RL finds them.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Say = Callable[[str], None]
INFO = "training_info.json"
WEIGHTS = Path("policy", "weights", "model")
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
ACCURACY = "val:accuracy"


class SavedCheckpoint(NamedTuple):
    """A whole checkpoint. `step` counts NeMo RL's own steps; `info` is what it noted of the training."""

    step: int
    folder: Path
    info: dict[str, Any]

    @property
    def accuracy(self) -> float | None:
        """On held-out prompts, if they were asked at this step."""
        value = self.info.get(ACCURACY)
        return float(value) if isinstance(value, int | float) else None


def whole(root: Path, lora: bool, say: Say) -> list[SavedCheckpoint]:
    """Whole checkpoints, newest first; each one passed over is named with its flaw."""
    saved_checkpoints: list[SavedCheckpoint] = []
    for step, folder in _steps(root):
        if (flaw := find_flaw(folder, lora)) is None:
            saved_checkpoints.append(SavedCheckpoint(step, folder, json.loads((folder / INFO).read_text())))
        else:
            say(f"checkpoint {folder.name} is passed over: {flaw}")
    return saved_checkpoints


def best(saved: Sequence[SavedCheckpoint]) -> SavedCheckpoint | None:
    """The one with the highest held-out accuracy, the newest of equals; NaN and none rank worst."""

    def rank(each: SavedCheckpoint) -> tuple[float, int]:
        accuracy = each.accuracy
        return (-math.inf if accuracy is None or math.isnan(accuracy) else accuracy, each.step)

    return max(saved, key=rank, default=None)


def set_aside(root: Path, lora: bool, say: Say) -> None:
    """Take from NeMo RL's sight what it must not resume from: torn checkpoints are renamed, unfinished ones deleted."""
    for unfinished in sorted(root.glob("tmp_step_*")):
        say(f"checkpoint {unfinished.name} was never finished: deleted")
        shutil.rmtree(unfinished)
    for _, folder in _steps(root):
        if (flaw := find_flaw(folder, lora)) is not None:
            aside = folder.with_name(f"torn_{folder.name}")
            say(f"checkpoint {folder.name} is passed over: {flaw}; it is now {aside.name}")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)


def find_flaw(folder: Path, lora: bool) -> str | None:
    """Why a checkpoint must not be resumed or converted from, or None."""
    try:
        info = json.loads((folder / INFO).read_text())
        reached = info["total_steps"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{INFO} cannot be read ({type(error).__name__})"
    if folder.name != f"step_{reached}":
        return f"{INFO} is of step {reached}"
    for name in ("config.yaml", "train_dataloader.pt"):
        if not (folder / name).is_file():
            return f"{name} is missing"
    for name in ("policy/optimizer", "policy/tokenizer"):  # without an optimizer NeMo RL begins with a fresh one
        if not any(each.is_file() for each in (folder / name).rglob("*")):
            return f"{name} is missing"
    weights = folder / WEIGHTS
    for name in ADAPTER if lora else (".metadata",):
        if not (weights / name).is_file():
            return f"{WEIGHTS / name} is missing"
    if not lora and not any(weights.glob("*.distcp")):
        return f"{WEIGHTS} has no shards"
    if empty := [each for each in sorted(folder.rglob("*")) if each.is_file() and not each.stat().st_size]:
        return f"{empty[0].relative_to(folder)} is empty"
    return _torn(weights / ADAPTER[1]) if lora else None


def _torn(path: Path) -> str | None:
    """safetensors says in its header how long it is."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            return None
    except (OSError, SafetensorError) as error:
        return f"{path.name} is torn ({error})"


def _steps(root: Path) -> list[tuple[int, Path]]:
    matches = [(match, path) for path in root.glob("step_*") if (match := re.fullmatch(r"step_(\d+)", path.name))]
    return sorted(((int(match[1]), path) for match, path in matches), reverse=True)
