"""The literal command, `dagster job launch -j JOB`, on the repository's own instance files and a toy job."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pytest
from dagster._daemon.types import DaemonHeartbeat

from assets.environment import DATA_ROOT_TAG, ONE_AT_A_TIME
from jobs.coordinator import TAKES_RUNS
from jobs.workers import WORKERS, WorkerFiles
from tests.marked import MARK, kill
from tests.processes import below, is_alive, wait_for

REPOSITORY = Path(__file__).parents[2]
DEADLINE_S = 120

pytestmark = pytest.mark.slow


@dataclass
class Clone:
    """A directory with what a fresh clone has: instance files, definitions, and where to find them."""

    root: Path
    outputs: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: int = 0

    @property
    def output(self) -> Path:
        """What the command that was started last has printed."""
        return self.outputs / f"{self.started}.txt"

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a console script as a shell does: a process group of its own, in which SIGINT is not ignored."""
        self.started += 1
        with self.output.open("wb") as output:
            return subprocess.Popen(
                [Path(sys.executable).parent / command[0], *command[1:]],
                cwd=self.root,
                env={**os.environ, MARK: self.mark, "PWD": str(self.root)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def start_launch(self, act: str, *options: str) -> subprocess.Popen[bytes]:
        tags = json.dumps({"act": act, DATA_ROOT_TAG: str(self.root / "data"), ONE_AT_A_TIME: "toy"})
        return self.start("dagster", "job", "launch", "-j", "toy", "--tags", tags, *options)

    def launch(self, act: str) -> tuple[int, str]:
        """The exit status and the output of one launch."""
        status = self.start_launch(act).wait(timeout=DEADLINE_S)
        return status, self.output.read_text()

    def launch_and_hang(self) -> tuple[subprocess.Popen[bytes], list[int]]:
        """A launch whose second step hangs now, and the pids of the run: worker, step, the step's child."""
        pids = self.root / ".dagster" / "pids"
        pids.unlink(missing_ok=True)
        launch = self.start_launch("hang")
        wait_for(lambda: pids.exists() or launch.poll() is not None)
        assert pids.exists(), self.output.read_text()
        with self.instance() as instance:
            worker = instance.run_launcher.workers.find(self.last_run().run_id).pid
        return launch, [worker, *map(int, pids.read_text().split())]

    @contextmanager
    def instance(self) -> Iterator[dg.DagsterInstance]:
        with chdir(self.root), dg.DagsterInstance.from_config(str(self.root)) as instance:
            yield instance

    def last_run(self) -> dg.DagsterRun:
        with self.instance() as instance:
            return instance.get_runs(limit=1)[0]

    def status_of(self, run: dg.DagsterRun) -> dg.DagsterRunStatus:
        with self.instance() as instance:
            return instance.get_run_by_id(run.run_id).status

    def beat(self, age_s: float) -> None:
        """Leave the heartbeat of a daemon that nobody hears of any more."""
        with self.instance() as instance:
            instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - age_s, TAKES_RUNS, "a daemon", None))

    def heartbeats(self) -> set[str]:
        with self.instance() as instance:
            return set(instance.get_daemon_heartbeats())


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    root = tmp_path_factory.mktemp("clone")
    for source in (REPOSITORY / ".env", REPOSITORY / "dagster.yaml", Path(__file__).with_name("toy_definitions.py")):
        shutil.copy(source, root)
    (root / "pyproject.toml").write_text('[tool.dagster]\nmodule_name = "toy_definitions"\n')
    return Clone(root, tmp_path_factory.mktemp("outputs"))


@pytest.fixture(autouse=True)
def nothing_left(clone: Clone) -> Iterator[None]:
    """A test that fails fails alone: a run that it left would keep the pool from the next one's."""
    yield
    kill(clone.mark)


@pytest.mark.variant
def test_a_terminal_gets_a_line_for_each_step(clone: Clone):
    typed = shlex.join([str(Path(sys.executable).parent / "dagster"), "job", "launch", "-j", "toy"])
    done = subprocess.run(["script", "-qec", typed, "/dev/null"], cwd=clone.root, capture_output=True, text=True)
    lines = [line.rpartition("\x1b[K")[2].split() for line in done.stdout.splitlines()]
    assert [line[1] for line in lines[:-3]] == ["run", "traces", "policy", "report"], done.stdout
    assert [line[0] for line in lines[-3:]] == ["outcome", "page", "next"]
    assert " ".join(lines[1]).endswith("s: a line to see live")
    assert "INFO" not in done.stdout


@pytest.mark.variant
def test_launch_with_a_daemon_says_why_the_run_failed(clone: Clone):
    daemon = clone.start("dagster-daemon", "run")
    wait_for(lambda: TAKES_RUNS in clone.heartbeats())
    status, output = clone.launch("fail")
    assert status == 1, output
    assert clone.last_run().is_failure
    assert "queued for the daemon" in output
    assert "without it" not in output
    assert output.count("ValueError: The reward is constant. Widen the prompts.") == 1
    assert output.splitlines()[-1].endswith("-o 'policy*'")
    assert "Dependencies for step" not in output
    daemon.send_signal(signal.SIGINT)
    daemon.wait(timeout=DEADLINE_S)
    assert not clone.heartbeats(), "a daemon that was stopped is not waited for"


def test_ctrl_c_cancels_the_run_and_ends_its_processes(clone: Clone):
    launch, pids = clone.launch_and_hang()
    run, output = clone.last_run(), clone.output
    os.killpg(launch.pid, signal.SIGINT)  # as a terminal does: to the command and to its code server
    assert launch.wait(timeout=DEADLINE_S) == 130, output.read_text()
    assert output.read_text().splitlines()[-1].split(maxsplit=1)[1].startswith("dagster job launch -j toy --tags ")
    assert clone.status_of(run) is dg.DagsterRunStatus.CANCELED
    wait_for(lambda: not any(map(is_alive, pids)))  # SIGKILL takes effect a moment later


def test_a_killed_code_server_ends_the_launch_with_2(clone: Clone):
    with clone.instance() as instance:
        before = instance.get_runs_count()
    launch = clone.start_launch("succeed")
    wait_for(lambda: below(launch.pid, "api grpc"))
    below(launch.pid, "api grpc")[0].kill()
    assert launch.wait(timeout=DEADLINE_S) == 2
    with clone.instance() as instance:
        assert instance.get_runs_count() == before


@pytest.mark.variant
def test_a_killed_worker_fails_the_run(clone: Clone):
    launch, pids = clone.launch_and_hang()
    files = WorkerFiles(clone.root / WORKERS)
    assert [(note.run, note.job) for note in files.at_work(clone.root / "data")] == [(clone.last_run().run_id, "toy")]
    os.kill(pids[0], signal.SIGKILL)
    assert launch.wait(timeout=DEADLINE_S) == 1, clone.output.read_text()
    assert clone.last_run().is_failure and files.at_work(clone.root / "data") == []
    wait_for(lambda: not any(map(is_alive, pids)))  # SIGKILL takes effect a moment later


@pytest.mark.variant
def test_a_launch_names_the_run_that_is_at_work_and_starts_none(clone: Clone):
    launch, pids = clone.launch_and_hang()
    at_work = clone.last_run()
    second = clone.start_launch("succeed")
    assert second.wait(timeout=DEADLINE_S) == 1
    refusal = clone.output.read_text()
    assert f"Error: Run {at_work.run_id} of toy is at work on {clone.root / 'data'}" in refusal
    assert "Traceback" not in refusal
    refused = clone.last_run()
    assert (refused.run_id != at_work.run_id, refused.status) == (True, dg.DagsterRunStatus.CANCELED)
    assert clone.status_of(at_work) is dg.DagsterRunStatus.STARTED
    os.kill(pids[1], signal.SIGKILL)  # the step that hangs
    assert launch.wait(timeout=DEADLINE_S) == 1


@pytest.mark.variant
@pytest.mark.parametrize(
    ("act", "retries", "cause"),
    [
        ("fail again", 1, "ValueError: The report is empty. Add an item."),
        ("refuse", 0, "The plan is wrong. Change it."),
    ],
)
def test_the_last_try_tells_the_cause(clone: Clone, act: str, retries: int, cause: str):
    """What cannot be cured is not tried again."""
    status, output = clone.launch(act)
    assert status == 1, output
    assert output.count(f"will be retried: {cause}") == output.count("will be retried") == retries
    assert output.count(f" s: {cause}") == 1 and "Exceeded max_retries" not in output


def test_when_everything_was_killed_the_same_command_completes(clone: Clone):
    launch, pids = clone.launch_and_hang()
    os.killpg(launch.pid, signal.SIGKILL)
    lost = clone.last_run()
    assert lost.status is dg.DagsterRunStatus.STARTED
    assert all(map(is_alive, pids)), "a run outlives the command that follows it"
    os.kill(pids[0], signal.SIGKILL)  # with the slot of the pool in its hands

    launch = clone.start_launch("hang")
    output = clone.output
    # The daemon beats until the command, however long that takes, has looked for it.
    wait_for(lambda: clone.beat(age_s=0) or "queued for the daemon" in output.read_text())
    assert clone.status_of(lost) is dg.DagsterRunStatus.FAILURE
    wait_for(lambda: not any(map(is_alive, pids)))  # SIGKILL takes effect a moment later
    clone.beat(age_s=3600)
    assert launch.wait(timeout=DEADLINE_S) == 0, output.read_text()
    assert "launched without it" in output.read_text()
    outcome, page, command = (line.split(maxsplit=1) for line in output.read_text().splitlines()[-3:])
    assert outcome[0] == "outcome" and outcome[1].startswith("SUCCESS in ")
    assert (page, command) == (
        ["page", "none: there is no iteration yet"],
        ["next", "dagster job launch -j preference_tuning"],
    )
    assert clone.last_run().is_success
