"""The lines that a training process prints for people, also into an open Dagster Pipes session."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

PREFIX = "training: "
SHOWN = {
    "reward": "reward",
    "accuracy": "accuracy",
    "rewards/accuracies": "pairs ranked right",
    "loss": "loss",
    "held_out/accuracy": "held out",
    "held_out/second_score": "second score",
    "tokens_per_s": "tokens/s",
}
PIPES = "DAGSTER_PIPES_CONTEXT"


def step_line(step: int, steps: int, row: Mapping[str, float]) -> str:
    """A step's progress: those of its metrics that people read."""
    return f"step {step}/{steps}  " + "  ".join(
        f"{name} {float(row[key]):.3f}" for key, name in SHOWN.items() if key in row
    )


def emit(message: str) -> None:
    """One progress line, of the first rank."""
    if os.environ.get("RANK", "0") == "0":
        print(f"{PREFIX}{message}", flush=True)
        if PIPES in os.environ:
            _session().log.info(message)


@cache
def _session() -> Any:
    from dagster_pipes import open_dagster_pipes

    return open_dagster_pipes()
