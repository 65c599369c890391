"""Checkpoints that survive a kill at any instant: committed, verified, retained, mirrored, resumed from."""

from pipeline.training.checkpoints.checkpointer import Checkpointer
from pipeline.training.checkpoints.claims import Claim, Superseded, WriterLocked, only_writer, room
from pipeline.training.checkpoints.manifest import MANIFEST, CheckpointManifest, published
from pipeline.training.checkpoints.save_schedule import SaveSchedule

__all__ = [
    "MANIFEST", "CheckpointManifest", "Checkpointer", "Claim", "SaveSchedule", "Superseded", "WriterLocked",
    "only_writer", "published", "room",
]  # fmt: skip
