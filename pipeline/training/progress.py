"""The lines that a training process prints for people, also into an open Dagster Pipes session."""

import os
from functools import cache
from typing import Any

PREFIX = "training: "
PIPES = "DAGSTER_PIPES_CONTEXT"


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
