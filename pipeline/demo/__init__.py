"""The embedded default world: a tiny base model, the task that it learns, and its traffic."""

import filecmp
from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
"""Made by `python -m examples.pretrain.arithmetic` with its default arguments."""


def has_weights_of(model: Path, folder: str | Path) -> bool:
    """Whether a folder holds the weights of an embedded model."""
    weights = Path(folder, "model.safetensors")
    return weights.is_file() and filecmp.cmp(weights, model / weights.name, shallow=False)
