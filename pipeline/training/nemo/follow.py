"""NeMo RL's process: started, followed line by line, and ended in good order.

SIGTERM. NeMo RL saves nothing on it, so the last checkpoint stands; one that is being written is given the grace to be
finished. Then the whole process group goes, Ray's processes with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.core.processes import die_with_parent
from pipeline.training.checkpoints import Superseded

TAIL = 30
KILL_AFTER_S = 10.0
FENCE_S = 2.0
"""Between two looks at the claim on the folder."""


class Process:
    """One run of a command in a directory of its own. `root`: of the checkpoints it writes."""

    def __init__(self, command: Sequence[str], cwd: Path, root: Path, grace_s: float) -> None:
        self._command, self._cwd, self._root, self._grace_s = command, cwd, root, grace_s
        self._process: subprocess.Popen[str] | None = None
        self._over = False
        self.tail: list[str] = []
        """The last lines."""

    def follow(self, take: Callable[[str], None], fence: Callable[[], None] = lambda: None) -> int:
        """Run to the end, handing on each line; returns the exit code, negative for a signal. Ends it at once when
        `fence` raises, which is asked every few seconds."""
        with subprocess.Popen(
            self._command,
            cwd=self._cwd,
            env={
                **os.environ,
                "HF_DATASETS_CACHE": str(self._root.parent / "cache"),
            },  # an erasure looks there
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            # uv passes SIGTERM on to what it runs; SIGKILL would leave that running beside its successor.
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        ) as process:
            self._process = process
            assert process.stdout is not None
            threading.Thread(target=self._end_once_superseded, args=(fence,), daemon=True).start()
            try:
                if self._over:  # SIGTERM came while it was being started
                    self.end()
                for line in process.stdout:
                    self.tail = [*self.tail[1 - TAIL :], line.rstrip()]
                    take(line)
                return process.wait()
            finally:
                self.end()

    def end_after_save(self) -> None:
        """End it in the background, as soon as no checkpoint is being written or nine tenths of the grace are over."""
        threading.Thread(target=self._end_after_save, daemon=True).start()

    def end(self) -> None:
        """End the process group, first politely; what its leader left behind goes too."""
        self._over, process = True, self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # nobody is left, from any moment on
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(KILL_AFTER_S, 0.1 * self._grace_s))
            os.killpg(process.pid, signal.SIGKILL)

    def _end_once_superseded(self, fence: Callable[[], None]) -> None:
        while not self._over:
            try:
                fence()
            except Superseded:
                return self.end()
            time.sleep(FENCE_S)

    def _end_after_save(self) -> None:
        until = time.monotonic() + 0.9 * self._grace_s
        while any(self._root.glob("tmp_step_*")) and time.monotonic() < until:
            time.sleep(0.1)
        self.end()
