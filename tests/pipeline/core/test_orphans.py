"""Servers whose parent is killed while their input stays open: the kernel ends them, and nothing else would."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from pipeline.core import layout
from pipeline.core.processes import process_start
from pipeline.core.storage import Store
from pipeline.rollout.gateway.process import GatewaySettings, running_address
from tests.processes import children, wait_for

pytestmark = pytest.mark.slow


def test_gateways_workers_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    settings = GatewaySettings(root=str(tmp_path), model_name="demo", port=0, workers=2)
    (tmp_path / "settings.json").write_text(settings.model_dump_json(exclude={"root"}))
    folder = Store(tmp_path).path(layout.gateway("demo"))
    command = [sys.executable, "-m", "pipeline.rollout.gateway", str(tmp_path / "settings.json"), str(tmp_path)]
    with subprocess.Popen(command) as supervisor:
        wait_for(lambda: (folder / "address.json").exists() and len(children(supervisor.pid)) >= 2)
        address = running_address(folder)
        assert address is not None
        wait_for(lambda: is_up(address.url))
        workers = children(supervisor.pid)
        os.kill(supervisor.pid, signal.SIGKILL)
    wait_for(lambda: all(process_start(pid) is None for pid in workers))
    assert running_address(folder) is None


def is_up(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/-/split", trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False
