"""No part of a server outlives who wanted it: real process trees and real SIGKILLs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from pipeline.core.processes import end_sessions, process_start, session_members
from pipeline.serving.leftovers import ServerGroup, end_leftovers, group_of, write_group
from pipeline.serving.server_process import server_process

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
WITHIN_S = 60
GRACE_S = 0.5
# As vLLM's processes are: a server, an engine, a worker of the engine; none ends with another.
SERVER = """
import subprocess, sys, time
from pathlib import Path
engine = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
subprocess.Popen([sys.executable, "-c", engine + "time.sleep(600)"])
print("no weights in sight", flush=True)
time.sleep(600)
"""
# Ignores SIGTERM.
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
STEP = """
import sys, time
from pathlib import Path
from pipeline.serving.server_process import server_process
with server_process("The server", [sys.executable, "-c", sys.argv[1]], {}, Path(sys.argv[2]), print, 0.5):
    time.sleep(600)
"""


class Started(NamedTuple):
    """A step, the file that names its server, and what that file says once the tree is whole."""

    step: subprocess.Popen[bytes]
    file: Path
    group: ServerGroup

    @property
    def watcher(self) -> int:
        return int(Path(f"/proc/{self.group.session}/stat").read_text().rpartition(")")[2].split()[1])


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def read(folder: Path) -> tuple[Path, ServerGroup] | None:
    for file in folder.glob("server-*.json"):
        with suppress(FileNotFoundError):
            return file, ServerGroup.model_validate_json(file.read_bytes())
    return None


@contextmanager
def started(folder: Path, server: str = SERVER, processes: int = 3) -> Generator[Started]:
    step = subprocess.Popen([sys.executable, "-c", STEP, server, str(folder)], cwd=ROOT)
    group = None
    try:
        wait_for(lambda: (now := read(folder)) is not None and len(now[1].members) == processes)
        now = read(folder)
        assert now is not None
        group = now[1]
        yield Started(step, *now)
    finally:
        step.kill()
        step.wait()
        if group is not None:
            end_sessions([group.session], signal.SIGKILL, 0)


def test_a_killed_step_leaves_no_server(tmp_path: Path) -> None:
    with started(tmp_path) as run:
        watcher = run.watcher
        run.step.kill()
        wait_for(lambda: not session_members(run.group.session))
        wait_for(lambda: process_start(watcher) is None)
        assert not run.file.exists()


def test_a_killed_server_takes_engine_and_worker_with_it(tmp_path: Path) -> None:
    with started(tmp_path) as run:
        os.kill(run.group.session, signal.SIGKILL)
        wait_for(lambda: not session_members(run.group.session))
        assert run.step.poll() is None


def test_what_a_killed_watcher_leaves_is_on_file(tmp_path: Path) -> None:
    with started(tmp_path) as run:
        os.kill(run.watcher, signal.SIGKILL)
        wait_for(lambda: run.group.session not in session_members(run.group.session))
        assert len(session_members(run.group.session)) == 2
        end_leftovers(tmp_path, 0, print)
        assert len(session_members(run.group.session)) == 2, "its step lives, and may yet end it"
        run.step.kill()
        run.step.wait()
        log: list[str] = []
        end_leftovers(tmp_path, 0, log.append)
        assert session_members(run.group.session) == []
        assert not run.file.exists() and "left behind by process" in log[0]


def test_a_start_ends_what_all_killed_processes_left(tmp_path: Path) -> None:
    with started(tmp_path) as run:
        for pid in (run.watcher, run.group.session, run.step.pid):
            os.kill(pid, signal.SIGKILL)
        run.step.wait()
        wait_for(lambda: len(session_members(run.group.session)) == 2)
        with server_process(
            "Another", [sys.executable, "-c", "import time; time.sleep(600)"], {}, tmp_path, print, GRACE_S
        ):
            assert session_members(run.group.session) == []
    assert list(tmp_path.glob("server-*.json")) == []


def test_a_step_that_ends_ends_what_its_watcher_left(tmp_path: Path) -> None:
    with server_process("The server", [sys.executable, "-c", SERVER], {}, tmp_path, print, GRACE_S):
        wait_for(lambda: (now := read(tmp_path)) is not None and len(now[1].members) == 3)
        now = read(tmp_path)
        assert now is not None
        group = now[1]
        os.kill(int(Path(f"/proc/{group.session}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
        wait_for(lambda: group.session not in session_members(group.session))
        assert len(session_members(group.session)) == 2
    assert session_members(group.session) == [] and not list(tmp_path.glob("server-*.json"))


def test_a_server_that_is_deaf_to_sigterm_is_killed(tmp_path: Path) -> None:
    with server_process("The server", [sys.executable, "-c", DEAF], {}, tmp_path, print, GRACE_S):
        wait_for(lambda: "deaf" in next(tmp_path.glob("*.log")).read_text() and read(tmp_path))
        now = read(tmp_path)
        assert now is not None
    assert session_members(now[1].session) == []


def forged(tmp_path: Path, sleeper: int, **changes: object) -> Path:
    """A file that names a live process which an earlier step could have started."""
    group = group_of(2**22 + 1, sleeper)
    path = tmp_path / "server-1.json"
    write_group(path, group.model_copy(update=changes))
    return path


@pytest.fixture
def sleeper() -> Generator[int]:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_only_the_process_on_file_is_ended(tmp_path: Path, sleeper: int) -> None:
    start = process_start(sleeper)
    assert start is not None
    reused = forged(tmp_path, sleeper, members={sleeper: start - 1})
    end_leftovers(tmp_path, 0, print)
    assert process_start(sleeper) == start and not reused.exists()
    elsewhere = forged(tmp_path, sleeper, machine="another pid:[1]")
    end_leftovers(tmp_path, 0, print)
    assert process_start(sleeper) == start and elsewhere.exists()
    wanted = forged(tmp_path, sleeper, owner={os.getpid(): process_start(os.getpid())})
    end_leftovers(tmp_path, 0, print)
    assert process_start(sleeper) == start and wanted.exists()
    forged(tmp_path, sleeper)
    end_leftovers(tmp_path, 0, print)
    assert process_start(sleeper) is None


def test_a_file_that_names_no_server_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "server-1.json").write_text(json.dumps({"machine": 1}))
    log: list[str] = []
    end_leftovers(tmp_path, 0, log.append)
    assert (tmp_path / "server-1.json").exists() and "left alone. Delete it." in log[0]


def test_a_server_that_ends_at_its_start_shows_its_last_lines(tmp_path: Path) -> None:
    broken = "print('CUDA is nowhere', flush=True); raise SystemExit(7)"
    with (
        server_process("The server", [sys.executable, "-c", broken], {}, tmp_path, print, GRACE_S) as server,
        pytest.raises(RuntimeError, match=r"ended before its first answer \(exit code 7\)[^$]*CUDA is nowhere"),
    ):
        server.await_health("http://127.0.0.1:1/health", WITHIN_S)


def test_a_server_that_is_not_ready_in_time_shows_its_last_lines(tmp_path: Path) -> None:
    with server_process("The server", [sys.executable, "-c", SERVER], {}, tmp_path, print, GRACE_S) as server:
        wait_for(lambda: "no weights" in next(tmp_path.glob("*.log")).read_text())
        with pytest.raises(RuntimeError, match=r"raise evaluation\.serving\.start_timeout_s[^$]*no weights in sight"):
            server.await_health("http://127.0.0.1:1/health", 0.1)


def test_a_secret_is_in_the_environment_and_in_no_argument(tmp_path: Path) -> None:
    shows = "import os, sys, time; print(os.environ['KEY'], flush=True); time.sleep(600)"
    with server_process("The server", [sys.executable, "-c", shows], {"KEY": "sk-1"}, tmp_path, print, GRACE_S):
        wait_for(lambda: "sk-1" in next(tmp_path.glob("*.log")).read_text() and read(tmp_path))
        now = read(tmp_path)
        assert now is not None
        pids = [now[1].session, *now[1].owner, *session_members(now[1].session)]
        assert not [pid for pid in pids if b"sk-1" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert "sk-1" not in now[0].read_text()
