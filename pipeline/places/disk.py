"""A folder that a run writes: tried by what the records, the locks and the databases below it need of a file system,
in a folder of its own beside it or above it, which goes again."""

import errno
import fcntl
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from pipeline.core.model_files import weight_files
from pipeline.core.storage import shown_path
from pipeline.recipe import Recipe

REST_BYTES = 200 << 20
"""For what is not the model's: tables, labels, logs."""
ADAPTER_SHARE, FULL_SHARE = 0.1, 6.0
"""Of a model's bytes that a checkpoint takes with its optimiser: of an adapter, and of all weights in float32 with two
moments, where the model is kept in 16 bits."""


def folder_faults(root: str, field: str) -> list[str]:
    """Why a run could not work on this folder, or one that it would make."""
    if "://" in root:
        return [f"{field}: {root} is no directory of this machine. Give a local or mounted path."]
    there = _existing(root)
    step = "written"
    try:
        with tempfile.TemporaryDirectory(dir=there, prefix=".tried-") as tried:
            first, second = Path(tried, "first"), Path(tried, "second")
            with first.open("wb") as stream:
                stream.write(b"\0" * 4096)
                stream.flush()
                os.fsync(stream.fileno())
                step = "locked (flock)"
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            step = "linked (hard links)"
            os.link(first, second)
            step = "renamed"
            second.rename(first)
            step = "a database of SQLite"
            with closing(sqlite3.connect(Path(tried, "tried.db"))) as database:
                database.execute("CREATE TABLE tried (one)")
    except (OSError, sqlite3.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        do = "Free space" if getattr(error, "errno", 0) == errno.ENOSPC else "Point it to a local disk"
        return [f"{field}: {shown_path(root)}: a file cannot be {step} in {there} ({why}). {do}."]
    return []


def space_faults(recipe: Recipe) -> list[str]:
    """Why one iteration would not fit below the data root."""
    model, training = model_bytes(recipe), recipe.training
    kept = training.checkpoints.keep_last + training.checkpoints.keep_best + 1
    checkpoint = model * (ADAPTER_SHARE if training.lora else FULL_SHARE)
    needed = round(model + kept * checkpoint) + REST_BYTES
    free = shutil.disk_usage(_existing(recipe.data_root)).free
    if free >= needed:
        return []
    return [
        f"data_root: {shown_path(recipe.data_root)} has {free / 1e9:,.1f} GB free, and an iteration writes about "
        f"{needed / 1e9:,.1f} GB (a tuned model, its checkpoints, tables). Free space, point it to another disk, or "
        "lower training.checkpoints.keep_last."
    ]


def model_bytes(recipe: Recipe) -> int:
    """Of the base model's weights; 0 where they are not whole, which the check of the model says."""
    try:
        return sum(file.stat().st_size for file in weight_files(Path(recipe.base_model.uri)))
    except (OSError, ValueError):
        return 0


def _existing(root: str) -> Path:
    place = Path(root).absolute()
    return next(folder for folder in (place, *place.parents) if folder.exists())
