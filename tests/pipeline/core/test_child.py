"""No part of a child outlives its block or its parent: real process trees, real signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.core.processes import Child, end_session, session_members
from tests.pipeline.core.test_processes import ROOT
from tests.processes import wait_for

pytestmark = pytest.mark.slow

GRACE_S = 0.5
# As vLLM's processes are: a server, an engine, a worker of the engine; none ends with another.
TREE = """
import os, subprocess, sys, time
engine = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
subprocess.Popen([sys.executable, "-c", engine + "time.sleep(600)"])
print(os.getpid(), flush=True)
time.sleep(600)
"""
DEAF = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); "
DEAF += "time.sleep(600)"
SAVES = """
import os, signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print(os.getpid(), flush=True)
time.sleep(600)
"""
STEP = """
import sys
from pipeline.core.processes import Child
with Child([sys.executable, "-c", sys.argv[1]], 0.5, watched=True) as child:
    for line in child.lines():
        print(line, end="", flush=True)
"""


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.kill(os.getpid(), 15)", -15),
    ],
)
def test_exit_codes_are_the_programs(program: str, code: int, watched: bool) -> None:
    with Child(python(f"print('here', flush=True); {program}"), GRACE_S, watched=watched) as child:
        assert list(child.lines()) == ["here\n"]
        assert child.wait() == (128 - code if watched and code < 0 else code)


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(("program", "code"), [(SAVES, 143), (DEAF, -9)], ids=["saves", "deaf"])
def test_a_block_that_ends_gives_the_grace_and_no_more(program: str, code: int, watched: bool) -> None:
    with Child(python(program), 0.5 if code < 0 else 60, watched=watched) as child:
        leader = int(next(child.lines()))
    assert child.code == (137 if watched and code < 0 else code)
    assert session_members(leader) == []


@pytest.mark.parametrize("killed", ["parent", "leader"])
def test_the_whole_session_ends_with(killed: str, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", STEP, TREE], cwd=ROOT, stdout=subprocess.PIPE, text=True) as step:
        assert step.stdout is not None
        leader = int(step.stdout.readline())
        try:
            wait_for(lambda: len(session_members(leader)) == 3)
            os.kill(step.pid if killed == "parent" else leader, signal.SIGKILL)
            wait_for(lambda: not session_members(leader))
            assert step.wait() == (-signal.SIGKILL if killed == "parent" else 0)
        finally:
            end_session(leader, signal.SIGKILL, 0)


def test_lines_environment_folder_and_tail_are_kept(tmp_path: Path) -> None:
    shows = "import os; print(os.environ['KEY'], os.getcwd(), 'gr\u00f6\u00dfe'); [print(n) for n in range(40)]"
    with Child(python(shows), GRACE_S, cwd=tmp_path, environment={"KEY": "sk-1", "PYTHONUTF8": "1"}) as child:
        first, *rest = child.lines()
    assert first == f"sk-1 {tmp_path} gr\u00f6\u00dfe\n" and len(rest) == 40
    assert child.tail == [str(n) for n in range(10, 40)]


def test_an_interrupt_cuts_the_grace_short() -> None:
    child = Child(python(DEAF), 600.0)
    next(child.lines())
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    begun = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            child.end()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert child.code == -9 and time.monotonic() - begun < 60
