"""The desk: an embedded support desk whose answers cannot be checked, and the tiny model that copies from its context.

Here lies only the place of the kept weights, so that a look at them imports nothing heavy.
"""

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
"""Weights, tokenizer and configuration made by `python -m pipeline.demo.desk.pretrain` with its default arguments."""
