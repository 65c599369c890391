"""The watcher of a server: `python -m pipeline.serving.watch PARENT FILE GRACE_S COMMAND...`.

Runs the command in a session of its own and ends the whole session with the first of these: the process PARENT (a pid,
and this process's parent), the command, or SIGTERM. It is not the server that looks after that: killed with SIGKILL,
it leaves the engine and the workers that it started on the device. Meanwhile FILE names the session, for who starts
after this process was killed too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from pipeline.core.processes import die_with_parent
from pipeline.serving.leftovers import end_session, group_of, write_group

POLL_S = 0.5


def watch(parent: int, path: Path, grace_s: float, command: list[str]) -> int:
    """Exit code of the command, negative for a signal."""
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, frame: asked_to_end.append(signum))
    server = subprocess.Popen(
        command,
        cwd=path.parent,
        start_new_session=True,
        # Without its watcher a server ends itself; by SIGTERM, which it passes on.
        preexec_fn=partial(die_with_parent, signal.SIGTERM, os.getpid()),
    )
    try:
        group = None
        while os.getppid() == parent and not asked_to_end and not _ended(server):
            if (now := group_of(parent, server.pid)) != group:
                write_group(path, group := now)
            time.sleep(POLL_S)
    finally:
        end_session(server.pid, grace_s)
        path.unlink(missing_ok=True)
    return server.wait()


def _ended(server: subprocess.Popen[bytes]) -> bool:
    """Whether the process is a zombie. It is not waited for: until then nobody else can have its pid."""
    return os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


if __name__ == "__main__":
    code = watch(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
    sys.exit(code if code >= 0 else 128 - code)
