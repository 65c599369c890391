"""The desk's judges as a process of the step that asks them: started when a recipe names one of them, ended with the
step. Refuses to stand in where an address is given."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pipeline.recipe.rewards import Judge
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.server_process import held_port, server_process

DIGEST = "demo-desk-3"
"""What a recipe gives as the digest of the desk's judges: with another program behind their names, another digest."""
START_TIMEOUT_S = 120.0
GRACE_S = 2.0


def is_desk_judge(settings: Judge | None) -> bool:
    """Whether the recipe names one of the desk's judges."""
    return settings is not None and settings.digest == DIGEST


@contextmanager
def judge_at(settings: Judge | None, given: Endpoint | None, folder: Path) -> Generator[Endpoint | None]:
    """Where the judge of a recipe listens: at the address given, or for one of the desk's at a server that lives as
    long as the block, its output in `folder`. None where the recipe has no judge, or one without an address."""
    if given is not None or not is_desk_judge(settings):
        yield given
        return
    with held_port() as held:
        port = held.getsockname()[1]
        command = [sys.executable, "-m", "pipeline.demo.desk.judges", str(port)]
        with server_process("The desk's judge", command, {}, folder, GRACE_S) as process:
            process.await_health(f"http://127.0.0.1:{port}/health", START_TIMEOUT_S)
            yield Endpoint(f"http://127.0.0.1:{port}/v1")
