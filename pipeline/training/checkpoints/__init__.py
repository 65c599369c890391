"""Checkpoints that survive a kill at any instant: committed, verified, retained, mirrored, resumed from.

Refuses to know what is in them: the files are the Trainer's, random states included.
"""

from __future__ import annotations

from pipeline.training.checkpoints.cadence import Cadence
from pipeline.training.checkpoints.checkpointer import Checkpointer
from pipeline.training.checkpoints.folders import published
from pipeline.training.checkpoints.manifest import MANIFEST, Manifest
from pipeline.training.checkpoints.turn import Turn
from pipeline.training.checkpoints.writer import Busy, only_writer, room

__all__ = ["MANIFEST", "Busy", "Cadence", "Checkpointer", "Manifest", "Turn", "only_writer", "published", "room"]
