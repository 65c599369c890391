"""The desk: an embedded support desk whose answers cannot be checked, and a tiny model that copies from its context."""

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
"""Made by `python -m examples.pretrain.desk` with its default arguments."""
