"""A model's server as a process of this machine: under a watcher, awaited, and ended with all that it started."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.serving.leftovers import ServerGroup, end_group, end_leftovers

GRACE_S = 15.0
"""From SIGTERM to SIGKILL."""
END_S = 15.0
"""That a watcher has beyond it, to end the rest by SIGKILL."""
POLL_S = 0.2
TAIL_LINES = 30
HEALTH_TIMEOUT_S = 5.0


class ServerProcess:
    """A server that runs, and the file that its output goes to."""

    def __init__(self, name: str, watcher: subprocess.Popen[bytes], log: Path) -> None:
        self._name, self._watcher, self._log = name, watcher, log

    @property
    def ended(self) -> bool:
        return self._watcher.poll() is not None

    def failure(self, problem: str) -> RuntimeError:
        """What a person needs: the problem, the exit code where there is one, and the server's last lines."""
        code = self._watcher.poll()
        ended = "" if code is None else f" (exit code {code})"
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
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
    name: str,
    command: list[str],
    environment: Mapping[str, str],
    folder: Path,
    log: Callable[[str], None],
    grace_s: float = GRACE_S,
) -> Generator[ServerProcess]:
    """Run `command` until the block ends, its output in `folder`; what an earlier step left in there is ended first.

    `environment`: beside this process's own. A secret belongs there: arguments can be read by every user.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    end_leftovers(folder, grace_s, log)
    token = secrets.token_hex(4)
    path, output = folder / f"server-{token}.json", folder / f"server-{token}.log"
    watched = [sys.executable, "-m", "pipeline.serving.watch", str(os.getpid()), str(path), str(grace_s), *command]
    with (
        output.open("wb") as stream,
        subprocess.Popen(
            watched,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        ) as watcher,
    ):
        try:
            yield ServerProcess(name, watcher, output)
        finally:
            watcher.terminate()
            with suppress(subprocess.TimeoutExpired):
                watcher.wait(grace_s + END_S)
            watcher.kill()
            with suppress(FileNotFoundError):  # the watcher was killed: it would have removed it
                end_group(path, ServerGroup.model_validate_json(path.read_bytes()), grace_s, log)
