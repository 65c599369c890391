"""A slot as a process of this machine: one model, served on loopback for as long as a block runs."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pipeline.core.storage import ModelRef
from pipeline.serving.served_names import served_name
from pipeline.serving.server_process import ServerProcess, held_port, server_process

START_TIMEOUT_S = 300.0
GRACE_S = 5.0


class ModelSlot(NamedTuple):
    """A model that answers at `url`, the root of an OpenAI-compatible API."""

    url: str
    process: ServerProcess


@contextmanager
def model_slot(model_name: str, model: ModelRef, limit: int, folder: Path) -> Generator[ModelSlot]:
    """A server of the model while the block runs. `limit`: tokens of an answer at most. Output goes to `folder`. Raises
    RuntimeError with the server's last lines when it does not start."""
    name = served_name(model_name, model.digest)
    with held_port() as held:
        port = held.getsockname()[1]
        command = [sys.executable, "-m", "pipeline.serving.slot_server", model.uri, str(port), f"{name},{model_name}"]
        with server_process(f"The slot of {name}", [*command, str(limit)], {}, folder, GRACE_S) as process:
            process.await_health(f"http://127.0.0.1:{port}/health", START_TIMEOUT_S)
            yield ModelSlot(f"http://127.0.0.1:{port}/v1", process)
