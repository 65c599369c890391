"""The desk: an embedded support desk whose answers cannot be checked, and a tiny model that copies from its context."""

from pathlib import Path

from pipeline.core.storage import digest_file

MODEL_DIR: Path = Path(__file__).parent / "model"
"""Made by `python -m examples.pretrain.desk` with its default arguments."""

MODEL_SHA256: str = "39c939a653691e300ff79f2eb1fb24cc3434d04f04e5c95d7316a343d44103da"
"""sha256 of `model.safetensors`."""


def is_desk_model(folder: str | Path) -> bool:
    weights = Path(folder, "model.safetensors")
    return weights.is_file() and digest_file(weights) == MODEL_SHA256
