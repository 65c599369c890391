"""The desk's judges as a process of the step that asks them, where a recipe names one and no address is given."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pipeline.recipe.rewards import Judge
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.server_process import held_port, server_process

DIGEST = "demo-desk-3"
"""The digest of the desk's judges in a recipe; it changes with their program."""
START_TIMEOUT_S = 120.0
GRACE_S = 2.0


def is_desk_judge(settings: Judge | None) -> bool:
    return settings is not None and settings.digest == DIGEST


@contextmanager
def judge_at(settings: Judge | None, given: Endpoint | None, folder: Path) -> Generator[Endpoint | None]:
    """The given endpoint, or for a judge of the desk a server until the block ends, with its output in `folder`."""
    if given is not None or not is_desk_judge(settings):
        yield given
        return
    with held_port() as held:
        port = held.getsockname()[1]
        command = [sys.executable, "-m", "pipeline.demo.desk.judges", str(port)]
        with server_process("The desk's judge", command, {}, folder, GRACE_S) as process:
            process.await_health(f"http://127.0.0.1:{port}/health", START_TIMEOUT_S)
            yield Endpoint(f"http://127.0.0.1:{port}/v1")
