"""What is left of the commands when they are ended: nothing, whoever is ended and with what signal."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.loop import ROOT, environment
from tests.marked import MARK, left_after, marked
from tests.ports import held_port

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
UP_S = 240
ENDED_S = 90
"""A code server notices after 30 s that its command was killed; the others end at once, or in the UI's grace."""
LAUNCH = ["dagster", "job", "launch", "-j"]
TOY = [*LAUNCH, "toy", "--tags", '{"act": "hang"}']


class Command:
    """A command in a directory like a fresh clone's, and all the processes that came from it."""

    def __init__(self, folder: Path, words: list[str], sigint: signal.Handlers, variables: dict[str, str]):
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
                preexec_fn=lambda: signal.signal(signal.SIGINT, sigint),
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

    def hung(self) -> str:
        """The pids of a toy's step that hangs and of its child, once it does."""
        with suppress(FileNotFoundError):
            return (self.folder / ".dagster" / "pids").read_text()
        return ""

    def wait(self) -> int:
        return self.process.wait(timeout=UP_S)

    def left(self) -> dict[int, str]:
        return left_after(self.mark, ENDED_S)

    def kill_all(self) -> None:
        for pid in marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENDED_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def parent(pid: int) -> int:
    """The pid of its parent; 0 for a process that has just ended."""
    with suppress(FileNotFoundError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts commands, and ends what a failed test leaves of them."""
    folder, started = tmp_path / "clone", []
    folder.mkdir()
    for source in (ROOT / ".env", ROOT / "dagster.yaml", Path(__file__).with_name("toy_definitions.py")):
        shutil.copy(source, folder)
    (folder / "pyproject.toml").write_text('[tool.dagster]\nmodule_name = "toy_definitions"\n')

    def start(*words: str, sigint: signal.Handlers = signal.SIG_IGN, **variables: str) -> Command:
        """With SIGINT ignored, as `command &` in a script starts it."""
        started.append(Command(folder, list(words), sigint, {"PWD": str(folder), **variables}))
        return started[-1]

    yield start
    for command in started:
        command.kill_all()


@pytest.fixture
def ui(start: Callable[..., Command], tmp_path: Path) -> Iterator[Command]:
    """`make ui` without make, both servers started and Dagster's daemon among them."""
    with held_port() as dagster, held_port() as mlflow:
        command = start(
            "python",
            "-m",
            "jobs.ui",
            PYTHONPATH=str(ROOT),
            DAGSTER_PORT=str(dagster.getsockname()[1]),
            MLFLOW_PORT=str(mlflow.getsockname()[1]),
            PREFERENCE_TUNING_OVERRIDES=f"data_root={tmp_path / 'data'}",
        )
        command.wait_for(lambda: command.find("dagster._daemon", "run") and command.find("-m uvicorn"))
        assert len(marked(command.mark)) >= 8
        yield command


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ui_ends_on_a_signal(ui: Command, signum: signal.Signals) -> None:
    ui.process.send_signal(signum)
    assert ui.wait() == 0, ui.text()
    assert marked(ui.mark) == {}


def test_ui_killed_leaves_nothing(ui: Command) -> None:
    ui.process.kill()
    ui.wait()
    assert ui.left() == {}


@pytest.mark.parametrize(
    ("words", "name"), [(("bin/dagster", "dev"), "Dagster"), (("-m uvicorn",), "MLflow"), (("jobs.ui",), "The guard")]
)
def test_ui_ends_when_a_part_is_killed(ui: Command, words: tuple[str, ...], name: str) -> None:
    [part] = set(ui.find(*words)) - {ui.process.pid}
    os.kill(part, signal.SIGKILL)
    assert ui.wait() == 1
    assert marked(ui.mark) == {}
    assert f"\n{name} " in ui.text()
    assert "so everything was ended" in ui.text()


def test_ui_ends_with_its_make(start: Callable[..., Command], tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path / "clone")
    with held_port() as dagster, held_port() as mlflow:
        ports = {"DAGSTER_PORT": str(dagster.getsockname()[1]), "MLFLOW_PORT": str(mlflow.getsockname()[1])}
        (tmp_path / "clone" / ".venv").mkdir()
        (tmp_path / "clone" / ".venv" / "installed").touch()
        command = start("make", "ui", "-o", ".venv/installed", PYTHONPATH=str(ROOT), **ports)
        command.wait_for(lambda: command.find("-m uvicorn"))
        command.process.kill()
        assert command.left() == {}


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_launch_ended_while_it_loads(start: Callable[..., Command], signum: signal.Signals) -> None:
    command = start(*TOY, sigint=signal.SIG_DFL)
    command.wait_for(lambda: "Starting Dagster code server" in command.text())
    command.process.send_signal(signum)
    assert command.left() == {}


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_launch_ends_its_run_on_a_signal(start: Callable[..., Command], signum: signal.Signals) -> None:
    command = start(*TOY, sigint=signal.SIG_DFL)
    command.wait_for(command.hung)
    command.process.send_signal(signum)
    assert command.wait() == 128 + signum, command.text()
    assert command.left() == {}


@pytest.mark.parametrize("who", ["worker", "step"])
@pytest.mark.parametrize("followed", [True, False])
def test_run_with_a_killed_part_leaves_nothing(start: Callable[..., Command], who: str, followed: bool) -> None:
    command = start(*TOY)
    command.wait_for(command.hung)
    if not followed:  # a killed launch leaves its run at work: the same command again goes on with it
        command.process.kill()
        command.process.wait()
    [worker], step = command.find("api execute_run"), int(command.hung().split()[0])
    os.kill({"worker": worker, "step": step}[who], signal.SIGKILL)
    assert command.left() == {}, command.text()


@pytest.mark.timeout(1800)  # two launches of the whole job on a shortened recipe
def test_loop_with_a_killed_part_leaves_nothing(start: Callable[..., Command], tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    (folder / "pyproject.toml").unlink()
    variables = environment(folder, tmp_path / "data")
    launch = [*LAUNCH, "preference_tuning", "-m", "jobs.definitions"]

    command = start(*launch, **variables)
    command.wait_for(lambda: command.find("-m pipeline.serving"))
    command.process.kill()
    command.process.wait()
    [worker] = command.find("api execute_run")
    os.kill(worker, signal.SIGKILL)  # while a sampler, which its step follows, still imports
    assert command.left() == {}

    command = start(*launch, **variables)
    command.wait_for(lambda: "step 4/16" in command.text())
    [trainer], trained = command.find("-m pipeline.training"), marked(command.mark)
    assert len(trained) > 6
    command.process.kill()
    command.process.wait()
    step = parent(trainer)
    of_step = {step, *(pid for pid in trained if parent(pid) in (step, trainer))}
    os.kill(step, signal.SIGKILL)
    wait_until(lambda: of_step.isdisjoint(marked(command.mark)))
    [worker] = command.find("api execute_run")
    os.kill(worker, signal.SIGKILL)  # which retries the training, for a while with no command that follows it
    assert command.left() == {}

    command = start(*launch, **variables)
    command.wait_for(lambda: "step 8/16" in command.text())
    command.process.terminate()
    assert command.wait() == 128 + signal.SIGTERM, command.text()
    assert command.left() == {}
