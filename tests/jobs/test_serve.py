"""`make serve` as a process: it answers clients and people, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from jobs import serve
from pipeline.core.processes import session_members
from pipeline.core.storage import Store
from pipeline.rollout.gateway.split import read_split
from pipeline.rollout.router import NO_ROLLOUT
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
        if match := re.search(r"Clients use (http://127\.0\.0\.1:\d+)/", line):
            return match[1]
    raise AssertionError("".join(lines))


@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.variant)])
def test_it_answers_until_it_is_ended_and_leaves_nothing(tmp_path: Path, signum: signal.Signals) -> None:
    process = started(tmp_path / "data")
    try:
        url = address(process)
        body = {"model": "any", "messages": [{"role": "user", "content": "3 + 4?"}]}
        reply = httpx2.post(f"{url}/v1/chat/completions", json=body, headers={"x-user-id": "ada"}, timeout=60)
        assert reply.json()["model"].startswith("arithmetic@")
        split = read_split(Store(tmp_path / "data"), "arithmetic")
        assert split is not None and split.rollout == NO_ROLLOUT, "a candidate's slot would leave no champion else"
        process.send_signal(signum)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert session_members(process.pid) == []
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{url}/health")


def test_another_router_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    route = "kind: http_route\n  export_to: s3://models/served\n  metrics: {url: 'http://prometheus:9090'}"
    recipe = tmp_path / "embedded.yaml"
    recipe.write_text(EMBEDDED.read_text().replace("kind: gateway", route))
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", str(recipe))
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", f"data_root={tmp_path / 'data'}")
    assert serve.main() == 1
    assert "http_route, which others keep" in capsys.readouterr().out
