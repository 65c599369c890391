"""Checkpoints that survive a kill at any instant: committed, verified, retained, mirrored, resumed from.

Refuses to know what is in them: the files are the Trainer's, random states included.
"""

from __future__ import annotations

from pipeline.training.checkpoints.checkpointer import Checkpointer
from pipeline.training.checkpoints.folders import published
from pipeline.training.checkpoints.manifest import MANIFEST, CheckpointManifest
from pipeline.training.checkpoints.save_schedule import SaveSchedule
from pipeline.training.checkpoints.turn import FencingToken
from pipeline.training.checkpoints.writer import WriterLocked, only_writer, room

__all__ = [
    "MANIFEST",
    "CheckpointManifest",
    "Checkpointer",
    "FencingToken",
    "SaveSchedule",
    "WriterLocked",
    "only_writer",
    "published",
    "room",
]
