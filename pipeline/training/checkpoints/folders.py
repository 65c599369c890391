"""The folders that checkpoints lie in: `step-NNNNNN` once published, a hidden name before and after."""

from __future__ import annotations

import re
import shutil
from pathlib import Path


def folder_name(step: int) -> str:
    return f"step-{step:06d}"


def step_of(name: str) -> int | None:
    """The step of a published checkpoint's folder name; None for any other name."""
    match = re.fullmatch(r"step-(\d+)", name)
    return int(match[1]) if match else None


def published(root: Path) -> list[Path]:
    """Published checkpoint folders, newest first, whole or not."""
    step_folders = [(step, folder) for folder in root.glob("step-*") if (step := step_of(folder.name)) is not None]
    return [folder for _, folder in sorted(step_folders, reverse=True)]


def remove(folder: Path) -> None:
    """Out of sight by one rename first: a kill leaves no half of it under its name."""
    gone = hidden(folder, "removed")
    shutil.rmtree(gone, ignore_errors=True)
    if folder.exists():
        folder.rename(gone)
        shutil.rmtree(gone)


def hidden(folder: Path, why: str) -> Path:
    return folder.with_name(f".{folder.name}-{why}")


def clear_hidden(root: Path) -> None:
    """Remove what a killed process left on its way in or out."""
    for leftover in root.glob(".step-*"):
        shutil.rmtree(leftover)
