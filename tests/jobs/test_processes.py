"""What is left of the commands when they are ended: nothing, whoever is ended and with what signal."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets import Origin, Subprotocol
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.loop import ROOT
from tests.marked import MARK, kill, left_after, listening_ports, marked
from tests.ports import held_port
from tests.variants import one_and_variants

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
UP_S = 240
ENDED_S = 90
"""A code server notices after 30 s that its command was killed; the others end at once, or in the UI's grace."""


class Command:
    """A command in a directory like a fresh clone's, and all the processes that came from it."""

    def __init__(self, folder: Path, words: list[str], variables: dict[str, str]):
        self.folder, self.mark, self.printed = folder, uuid.uuid4().hex, folder.with_name(f"printed-{uuid.uuid4().hex}")
        with self.printed.open("wb") as printed:
            self.process = subprocess.Popen(
                words,
                cwd=folder,
                env={**os.environ, **variables, MARK: self.mark, "PATH": f"{BIN}:{os.environ['PATH']}"},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
            )

    def find(self, *words: str) -> list[int]:
        return [pid for pid, line in marked(self.mark).items() if all(word in line for word in words)]

    def wait_for(self, what: Callable[[], object]) -> None:
        deadline = time.monotonic() + UP_S
        while not what():
            assert self.process.poll() is None and time.monotonic() < deadline, self.text()
            time.sleep(0.1)

    def text(self) -> str:
        return self.printed.read_text(errors="replace")

    def wait(self) -> int:
        return self.process.wait(timeout=UP_S)

    def left(self) -> dict[int, str]:
        return left_after(self.mark, ENDED_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts commands, each in a directory of its own, and ends what a failed test leaves of them."""
    started: list[Command] = []

    def start(*words: str, **variables: str) -> Command:
        """With SIGINT ignored, as `command &` in a script starts it."""
        folder = tmp_path / f"clone-{len(started)}"
        folder.mkdir(exist_ok=True)
        for source in (ROOT / ".env", ROOT / "dagster.yaml", Path(__file__).with_name("toy_definitions.py")):
            shutil.copy(source, folder)
        if "jobs.definitions" not in words:
            (folder / "pyproject.toml").write_text('[tool.dagster]\nmodule_name = "toy_definitions"\n')
        started.append(Command(folder, list(words), {"PWD": str(folder), **variables}))
        return started[-1]

    yield start
    for command in started:
        kill(command.mark)


@contextmanager
def ports() -> Iterator[dict[str, str]]:
    with held_port() as dagster, held_port() as mlflow:
        yield {"DAGSTER_PORT": str(dagster.getsockname()[1]), "MLFLOW_PORT": str(mlflow.getsockname()[1])}


@pytest.fixture
def ui(start: Callable[..., Command], tmp_path: Path) -> Iterator[Command]:
    """`make ui` without make, both servers started and Dagster's daemon among them."""
    with ports() as chosen:
        overrides = f"data_root={tmp_path / 'data'}"
        variables = {"PYTHONPATH": str(ROOT), "PREFERENCE_TUNING_OVERRIDES": overrides, **chosen}
        command = start("python", "-m", "jobs.ui", **variables)
        command.wait_for(lambda: len(listening_ports(command.mark)) == 2)
        assert listening_ports(command.mark) == {int(port) for port in chosen.values()}
        yield command


SERVER = f"""#!{sys.executable}
import os, signal, subprocess, sys
if sys.argv[1] == "-c":
    sys.exit()
if "pipeline.core.processes" in sys.argv[2]:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
[subprocess.Popen(["sleep", "600"]) for _ in range(2)]
signal.pause()
"""
"""In place of Dagster's servers and MLflow: like them it leaves children behind when it ends. What makes MLflow's
database has nothing to do here."""
UI = "import sys; from jobs import ui; sys.executable, ui.GRACE_S = sys.argv.pop(1), 1; sys.exit(ui.main(sys.argv[1:]))"
"""As `python -m jobs.ui`, with the servers that lie beside the given Python, and little grace for them."""


@pytest.fixture
def servers(tmp_path: Path) -> Path:
    """In place of the Python that starts Dagster's servers, with MLflow beside it."""
    for name in ("python", "mlflow"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(SERVER)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path / "bin" / "python"


@pytest.fixture
def quick_ui(start: Callable[..., Command], servers: Path, tmp_path: Path) -> Iterator[Command]:
    """The same with servers that start at once."""
    with ports() as chosen:
        overrides = f"data_root={tmp_path / 'data'}"
        variables = {"PYTHONPATH": str(ROOT), "PREFERENCE_TUNING_OVERRIDES": overrides, **chosen}
        command = start("python", "-c", UI, str(servers), **variables)
        command.wait_for(lambda: len(command.find("sleep")) == 6)
        yield command


def request(method: str, url: str, body: object = None, **headers: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON of an answer."""
    head = {"content-type": "application/json", **headers}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, head, method=method)) as answer:
            return answer.status, json.loads(answer.read() or "{}")
    except urllib.error.HTTPError as error:
        return error.code, {}


LAUNCH_RUN = {
    "query": "mutation($p: ExecutionParams!) { launchRun(executionParams: $p) { __typename } }",
    "variables": {"p": {"selector": {"repositoryLocationName": "preference_tuning", "repositoryName": "__repository__",
                                     "jobName": "lake_upkeep"}}},
}  # fmt: skip
DAEMONS = {"query": "{ instance { daemonHealth { allDaemonStatuses { daemonType healthy } } } }"}
SEARCH = {"max_results": 1}


def test_ui_serves_its_own_pages_alone_until_ctrl_c(ui: Command) -> None:
    ui.wait_for(lambda: "Ctrl-C ends both" in ui.text())
    said, dagster, mlflow, _ = ui.text().splitlines()
    assert said.endswith(".dagster/ui.log.") and "#/experiments/1?workflowType" in mlflow
    dagster, mlflow = (line.split()[1].partition("/#")[0] for line in (dagster, mlflow))
    graphql, experiments = f"{dagster}/graphql", f"{mlflow}/ajax-api/2.0/mlflow/experiments/search"
    foreign = "http://pages.example"

    status, launched = request("POST", graphql, LAUNCH_RUN, origin=dagster)
    assert status == 200 and launched["data"]["launchRun"]["__typename"], launched
    assert request("POST", experiments, SEARCH, origin=mlflow)[0] == 200
    refused = {
        "origin": request("POST", graphql, LAUNCH_RUN, origin=foreign),
        "another port": request("POST", graphql, LAUNCH_RUN, origin=mlflow),
        "host": request("POST", graphql, LAUNCH_RUN, host="pages.example", origin=foreign),
        "mutation by GET": request("GET", f"{graphql}?query=mutation%7BreloadWorkspace%7B__typename%7D%7D"),
        "MLflow's host": request("POST", experiments, SEARCH, host="pages.example"),
        "MLflow's origin": request("POST", experiments, SEARCH, origin=foreign),
    }
    assert {status for status, _ in refused.values()} == {403}, refused
    with pytest.raises(InvalidStatus, match="403"):
        connect(graphql.replace("http", "ws", 1), origin=Origin(foreign), proxy=None)
    own = {"origin": Origin(dagster), "subprotocols": [Subprotocol("graphql-ws")]}
    with connect(graphql.replace("http", "ws", 1), **own, proxy=None):
        pass

    def daemons() -> list[dict[str, Any]]:
        return request("POST", graphql, DAEMONS)[1]["data"]["instance"]["daemonHealth"]["allDaemonStatuses"]

    ui.wait_for(lambda: all(each["healthy"] for each in daemons() if each["daemonType"] in ("SCHEDULER", "SENSOR")))

    ui.process.send_signal(signal.SIGINT)
    assert ui.wait() == 0, ui.text()
    assert marked(ui.mark) == {}


@pytest.mark.variant
def test_ui_ends_on_sigterm(quick_ui: Command) -> None:
    quick_ui.process.terminate()
    assert quick_ui.wait() == 0, quick_ui.text()
    assert marked(quick_ui.mark) == {}


@pytest.mark.parametrize(
    ("word", "name"),
    one_and_variants(
        [("bin/mlflow", "MLflow"), ("dagster._daemon", "Dagster's daemon"), ("jobs.webserver", "Dagster's web server")]
    ),
)
def test_ui_ends_when_a_part_is_killed(quick_ui: Command, word: str, name: str) -> None:
    [part] = set(quick_ui.find(word)) - set(quick_ui.find("pipeline.core.processes"))
    os.kill(part, signal.SIGKILL)
    assert quick_ui.wait() == 1
    assert marked(quick_ui.mark) == {}
    assert f"\n{name} " in quick_ui.text()
    assert "so everything was ended" in quick_ui.text()


def test_ui_ends_with_its_make(start: Callable[..., Command], servers: Path, tmp_path: Path) -> None:
    (tmp_path / "clone-0" / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", tmp_path / "clone-0")
    (tmp_path / "clone-0" / ".venv" / "installed").touch()
    python = tmp_path / "clone-0" / ".venv" / "bin" / "python"  # what `python -m jobs.ui` in the Makefile is
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -c "{UI}" {servers} "$@"\n')
    python.chmod(0o755)
    with ports() as chosen:
        command = start("make", "ui", "-o", ".venv/installed", PYTHONPATH=str(ROOT), **chosen)
        command.wait_for(lambda: len(command.find("sleep")) == 6)
        command.process.kill()
        assert command.left() == {}
