"""Checkpoints that survive a kill at any instant: committed, verified, retained, mirrored, resumed from.

Refuses to know what is in them: the files are the Trainer's, random states included.
"""

from __future__ import annotations

from pipeline.training.checkpoints.checkpointer import Checkpointer
from pipeline.training.checkpoints.claims import Claim, Superseded
from pipeline.training.checkpoints.manifest import MANIFEST, CheckpointManifest, published
from pipeline.training.checkpoints.save_schedule import SaveSchedule
from pipeline.training.checkpoints.writer import WriterLocked, only_writer, room

__all__ = [
    "MANIFEST",
    "CheckpointManifest",
    "Checkpointer",
    "Claim",
    "SaveSchedule",
    "Superseded",
    "WriterLocked",
    "only_writer",
    "published",
    "room",
]
