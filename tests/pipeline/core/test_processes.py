"""Real processes and real signals: who ends with its parent, and what ends with a session."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core.processes import end_session, session_members
from tests.processes import WITHIN_S, wait_for

ROOT = Path(__file__).parents[3]
# Becomes an orphan before it says that it ends with its parent, as a trainer does whose step is killed meanwhile.
LATE = """
import os, sys, time
from pathlib import Path
from pipeline.core.processes import die_with_parent
while os.getppid() == int(sys.argv[1]):
    time.sleep(0.01)
die_with_parent(parent=int(sys.argv[1]))
Path(sys.argv[2]).touch()
time.sleep(600)
"""


START = """
import os, subprocess, sys
print(subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), sys.argv[2]], stdout=sys.stderr).pid)
"""


def start_session(script: str) -> subprocess.Popen[str]:
    """A shell that leads a session and prints a line when its children are there."""
    leader = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert leader.stdout is not None
    leader.stdout.readline()
    return leader


def test_child_of_a_dead_parent_ends_when_it_looks(tmp_path: Path) -> None:
    survived = tmp_path / "survived"
    done = subprocess.run(
        [sys.executable, "-c", START, LATE, str(survived)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    wait_for(lambda: survived.exists() or int(done.stdout) not in session_members(os.getsid(0)))
    assert not survived.exists()


def test_session_ends_with_those_who_left_their_parent() -> None:
    leader = start_session("trap '' INT; (sleep 600 & sleep 600 &); echo; sleep 600; sleep 600")
    wait_for(lambda: len(session_members(leader.pid)) == 4)
    end_session(leader.pid, signal.SIGINT, grace_s=0.3)
    assert session_members(leader.pid) == []
    assert leader.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_session_of_its_own_is_spared() -> None:
    leader = start_session("setsid sleep 600 & echo $!; wait")
    wait_for(lambda: len(session_members(leader.pid)) == 1)
    children = Path(f"/proc/{leader.pid}/task/{leader.pid}/children").read_text(encoding="utf-8").split()
    end_session(leader.pid, signal.SIGTERM, grace_s=WITHIN_S)
    try:
        assert session_members(int(children[0])) == [int(children[0])]
    finally:
        os.kill(int(children[0]), signal.SIGKILL)
