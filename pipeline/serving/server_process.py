"""A model's server as a process of this machine, awaited and ended with all that it started; a slot is one."""

import secrets
import socket
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pipeline.core.processes import TAIL_LINES, Child
from pipeline.core.storage import ModelRef
from pipeline.serving.endpoint import served_name

GRACE_S = 15.0
"""From SIGTERM to SIGKILL."""
SLOT_GRACE_S, SLOT_START_S = 5.0, 300.0
POLL_S = 0.2
HEALTH_TIMEOUT_S = 5.0


def held_port() -> socket.socket:
    """A free port of 127.0.0.1, held by a socket that does not listen until it is closed. The kernel gives it to no
    other process; who binds it by its number with SO_REUSEADDR, as servers do, may listen."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


class ServerProcess:
    """A server that runs, and the file that its output goes to."""

    def __init__(self, name: str, child: Child, log: Path) -> None:
        self._name, self._child, self._log = name, child, log

    @property
    def ended(self) -> bool:
        return self._child.code is not None

    def failure(self, problem: str) -> RuntimeError:
        """The problem with the exit code, where there is one, and the server's last lines."""
        code = self._child.code
        ended = "" if code is None else f" (exit code {code})"
        tail = "\n".join(self._log.read_text(errors="replace", encoding="utf-8").splitlines()[-TAIL_LINES:])
        return RuntimeError(f"{self._name} {problem}{ended}. The last lines of {self._log}:\n{tail}")

    def await_health(self, url: str, timeout_s: float) -> None:
        """Return once `url` answers with 200. Raises RuntimeError when the server ends before, or is too slow."""
        import httpx2

        deadline = time.monotonic() + timeout_s
        with httpx2.Client(trust_env=False, timeout=HEALTH_TIMEOUT_S) as client:
            while True:
                if self.ended:
                    raise self.failure("ended before its first answer")
                with suppress(httpx2.TransportError):
                    if client.get(url).status_code == 200:
                        return
                if time.monotonic() > deadline:
                    raise self.failure(
                        f"was not ready within {timeout_s:.0f} s. See to what it says below, or raise "
                        "evaluation.serving.start_timeout_s"
                    )
                time.sleep(POLL_S)


@contextmanager
def server_process(
    name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path, grace_s: float = GRACE_S
) -> Generator[ServerProcess]:
    """Run `command` until the block ends, its output in `folder`; `environment`: added to this process's own."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"server-{secrets.token_hex(4)}.log"
    with (
        path.open("wb") as stream,
        Child(command, grace_s, watched=True, cwd=folder, environment=environment, output=stream) as child,
    ):
        yield ServerProcess(name, child, path)


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
        with server_process(f"The slot of {name}", [*command, str(limit)], {}, folder, SLOT_GRACE_S) as process:
            process.await_health(f"http://127.0.0.1:{port}/health", SLOT_START_S)
            yield ModelSlot(f"http://127.0.0.1:{port}/v1", process)
