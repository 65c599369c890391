"""`make serve` as a process: it answers clients and people, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from pipeline.processes import session_members
from tests.loop import EMBEDDED, SHORT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def started(root: Path, *overrides: str) -> subprocess.Popen[str]:
    words = " ".join([*SHORT, f"data_root={root}", *overrides])
    environment = {
        **os.environ, "PREFERENCE_TUNING_RECIPE": str(EMBEDDED), "PREFERENCE_TUNING_OVERRIDES": words
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "jobs.serve"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def address(process: subprocess.Popen[str]) -> str:
    """The gateway's root, from the line that tells people."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if match := re.search(r"Chat with it: (http://127\.0\.0\.1:\d+)/", line):
            return match[1]
    raise AssertionError("".join(lines))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_until_it_is_ended_and_leaves_nothing(tmp_path: Path, signum: signal.Signals) -> None:
    process = started(tmp_path / "data")
    try:
        url = address(process)
        assert "<html" in httpx2.get(f"{url}/").text
        body = {"model": "any", "messages": [{"role": "user", "content": "3 + 4?"}]}
        reply = httpx2.post(f"{url}/v1/chat/completions", json=body, headers={"x-user-id": "ada"}, timeout=60)
        assert reply.json()["model"].startswith("arithmetic@")
        process.send_signal(signum)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert session_members(process.pid) == []
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{url}/health")


def test_servers_that_others_keep_are_not_served(tmp_path: Path) -> None:
    slots = [f"rollout.traffic.slots.{slot}=http://127.0.0.1:{port}/v1" for slot, port in (("a", 9), ("b", 8))]
    process = started(tmp_path / "data", *slots)
    assert process.wait(60) == 1
    assert process.stdout is not None
    assert "names servers that others keep" in process.stdout.read()
