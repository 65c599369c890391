"""What every child process of the loop does about its parent: it ends when the parent ends.

A run worker that is killed with SIGKILL cannot stop its children; without this, a training process would go on as
an orphan and write beside its own successor.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def die_with_parent(signum: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send `signum` to this process when its parent dies (prctl(2), Linux; elsewhere a no-op)."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    pr_set_pdeathsig = 1
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signum.value) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # the parent died before the request was in force
        os.kill(os.getpid(), signum)
