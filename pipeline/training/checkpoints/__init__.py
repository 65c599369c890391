"""Checkpoints that survive a kill at any instant: committed, verified, retained, mirrored, resumed from."""

from pipeline.training.checkpoints.checkpointer import Checkpointer, SaveSchedule, published
from pipeline.training.checkpoints.claims import Claim, Superseded, WriterLocked, only_writer
from pipeline.training.checkpoints.manifest import MANIFEST, CheckpointManifest

__all__ = [
    "MANIFEST", "CheckpointManifest", "Checkpointer", "Claim", "SaveSchedule", "Superseded", "WriterLocked",
    "only_writer", "published",
]  # fmt: skip
