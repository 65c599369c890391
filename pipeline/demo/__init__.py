"""The embedded default: a tiny base model that really learns, the task it learns, and the traffic it serves.

Here lie only the place and the digest of the kept weights, so that a look at them imports nothing heavy.
"""

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
"""Weights, tokenizer and configuration made by `python -m pipeline.demo.pretrain` with its default arguments."""

MODEL_SHA256: str = "03dc0049b5612be28ee89742abc8bfaa49e7d3169d278e0f83a3d8d8cd02fde4"
"""sha256 of `model.safetensors`."""
