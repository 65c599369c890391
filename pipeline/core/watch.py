"""The watcher of a program that outlives its parent: `python -m pipeline.core.watch PARENT GRACE_S COMMAND...`."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

from pipeline.core.processes import POLL_S, die_with_parent, end_sessions


def watch(parent: int, grace_s: float, command: list[str]) -> int:
    """Run the command in a session of its own, and end the whole session with the first of these: the process PARENT
    (then at once), the command, or SIGTERM (with the grace). Returns the exit code, 128 + n for signal n. A server that
    is killed leaves the engine and the workers that it started on the device; its watcher does not. What is not
    handled: SIGKILL to the watcher, after which the command gets SIGTERM, and nothing ends who ignores it."""
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, frame: asked_to_end.append(signum))
    ends_with_watcher = partial(die_with_parent, signal.SIGTERM, os.getpid())
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=ends_with_watcher)

    def runs() -> bool:
        # A zombie is not waited for: until then no other process can have its pid.
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    try:
        while runs() and os.getppid() == parent and not asked_to_end:
            time.sleep(POLL_S)
    finally:
        polite = runs() and os.getppid() == parent
        end_sessions([process.pid], signal.SIGTERM, grace_s if polite else 0.0)
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(watch(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
