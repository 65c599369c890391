"""A model's server: awaited by its health, explained by its last lines, its secret in no argument."""

import sys
from pathlib import Path

import pytest

from pipeline.core.processes import session_members
from pipeline.serving.server_process import server_process
from tests.processes import WITHIN_S, wait_for

pytestmark = pytest.mark.slow
GRACE_S = 0.5


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


@pytest.mark.parametrize(
    ("program", "timeout_s", "words"),
    [
        ("print('CUDA is nowhere', flush=True); raise SystemExit(7)", WITHIN_S,
         r"ended before its first answer \(exit code 7\)[^$]*CUDA is nowhere"),
        ("import time; print('no weights in sight', flush=True); time.sleep(600)", 0.1,
         r"raise evaluation\.serving\.start_timeout_s[^$]*no weights in sight"),
    ],
    ids=["ended", "too slow"],
)  # fmt: skip
def test_a_server_that_is_not_ready_shows_its_last_lines(
    program: str, timeout_s: float, words: str, tmp_path: Path
) -> None:
    with server_process("The server", python(program), {}, tmp_path, GRACE_S) as server:
        wait_for(lambda: "\n" in next(tmp_path.glob("*.log")).read_text())
        with pytest.raises(RuntimeError, match=words):
            server.await_health("http://127.0.0.1:1/health", timeout_s)


def test_a_secret_is_in_the_environment_and_in_no_argument(tmp_path: Path) -> None:
    shows = "import os, time; print(os.environ['KEY'], os.getpid(), os.getppid(), flush=True); time.sleep(600)"
    with server_process("The server", python(shows), {"KEY": "sk-1"}, tmp_path, GRACE_S) as server:
        wait_for(lambda: "\n" in next(tmp_path.glob("*.log")).read_text())
        key, *pids = next(tmp_path.glob("*.log")).read_text().split()
        assert key == "sk-1" and not server.ended
        assert not [pid for pid in pids if b"sk-1" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert server.ended and session_members(int(pids[0])) == []
