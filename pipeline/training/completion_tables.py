"""Some of the completions that a training draws, as Parquet files for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import Trainer

EVERY, ROWS = 10, 16
"""Steps between tables, and their rows."""


def write_completions(trainer: Trainer, folder: Path, step: int) -> None:
    """Those that TRL still holds, into `step-<step>.parquet`; nothing where the method draws none."""
    logs: Any = getattr(trainer, "_logs", None)
    if not logs or not logs["completion"] or not trainer.accelerator.is_main_process:
        return
    rows: Sequence[tuple[Any, ...]] = list(
        zip(logs["prompt"], logs["completion"], *logs["rewards"].values(), logs["advantages"], strict=False)
    )[:ROWS]
    table = pa.table(
        {
            "prompt": [json.dumps(row[0], ensure_ascii=False) for row in rows],
            "completion": [row[1][-1]["content"] for row in rows],
            "reward": [float(row[2]) for row in rows],
            "advantage": [float(row[-1]) for row in rows],
        }
    )
    folder.mkdir(exist_ok=True)
    pq.write_table(table, folder / f"step-{step:06d}.parquet")
