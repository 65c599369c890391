"""Metrics of a training that goes on, with a real tracking server whose connections are cut, and real kills."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from pipeline.core import layout, mlflow_server
from pipeline.core.iteration import Iteration, identify
from pipeline.core.storage import DatasetRef, ModelRef, Store
from pipeline.registry import runs
from pipeline.registry.runs import MetricsSender, MlflowAddresses, metrics_file
from pipeline.rollout.record import JudgedCandidate
from pipeline.training.journal import MetricsLog, TrainingJournal, read_rows
from tests.ports import held_port
from tests.processes import wait_for

from .conftest import put_on_record

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
runs.EVERY_S = 0.05

TRAINS = """
import sys
from tests.pipeline.registry.test_live import Training
training = Training(*sys.argv[1:])
with training.sent(print):
    training.train(range(1 << 20))
"""


class Training:
    """The trainer's files under a data root, written as it writes them, and who sends them to `url`."""

    def __init__(self, root: str | Path, url: str, name: str) -> None:
        self.store, self.url = Store(root), url
        dataset = DatasetRef(uri="d", rows=7, digest="0" * 64, snapshot="s")
        self.iteration: Iteration = identify(0, name, ModelRef(uri="base", digest="b"), dataset, "recipe")
        self.folder = self.store.path(self.iteration.path(layout.TRAINING))
        self.journal = TrainingJournal(self.folder / layout.JOURNAL_FILE)
        self.client = MlflowClient(url, url)

    def train(self, steps: range) -> None:
        self.journal.add("started", steps.start)
        metrics = MetricsLog(self.folder / layout.METRICS_FILE)
        for step in steps:
            metrics.add({"step": step, "reward": step / 8, "seconds/step": 0.1})
            threading.Event().wait(0.01)  # a step takes a while, and each has a time of its own

    def sent(self, log: Any) -> Any:
        tags = {"mlflow.user": "ann"}
        return MetricsSender(lambda: MlflowAddresses(self.url), self.store, self.iteration, tags, log)

    def runs(self) -> list[Any]:
        experiment = self.client.get_experiment_by_name(self.iteration.model_name)
        return self.client.search_runs([experiment.experiment_id]) if experiment else []

    def points(self, name: str = "reward") -> list[tuple[int, float, int]]:
        """Step, value and time in ms of each point, of all runs of the model."""
        points = [point for run in self.runs() for point in self.client.get_metric_history(run.info.run_id, name)]
        return [(point.step, point.value, point.timestamp) for point in sorted(points, key=lambda each: each.step)]

    def logged(self) -> list[tuple[int, float, int]]:
        """The same as the trainer's file has them."""
        rows = read_rows(metrics_file(self.store, self.iteration))[0]
        return [(row.step, row.metrics["reward"], int(row.at * 1000)) for row in rows]

    def record(self) -> None:
        weights = ModelRef(uri=str(self.folder), digest="m")
        rows = [{"step": row.step, "reward": 9.0} for row in read_rows(metrics_file(self.store, self.iteration))[0]]
        metrics = [*rows, {**rows[-1], "goodput/share": 0.5}]
        failed = JudgedCandidate("FAIL", "", "bundle")
        put_on_record(MlflowAddresses(self.url), self.store, self.iteration, weights, weights, failed, metrics=metrics)


def test_killed_sender_goes_on_with_its_run_and_its_points(server: str, tmp_path: Path) -> None:
    training = Training(tmp_path, server, "killed-sender")
    command = [sys.executable, "-c", TRAINS, str(tmp_path), server, "killed-sender"]
    process = subprocess.Popen(command, cwd=ROOT)
    wait_for(lambda: len(training.points()) > 20)
    assert [run.info.status for run in training.runs()] == ["RUNNING"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = len(training.points())
    with training.sent(print):
        training.train(range(before - 5, before + 20))  # a checkpoint lies some steps back
    points = training.points()
    assert points == training.logged()
    assert [step for step, *_ in points] == list(range(len(points)))
    assert len({at for *_, at in points}) == len(points) > 40
    training.record()
    (run,) = training.runs()
    assert training.points() == points, "what was sent stays as it was sent"
    assert (run.info.status, run.data.tags["mlflow.user"]) == ("FINISHED", "ann")
    assert [at for *_, at in training.points("goodput/share")] == [points[-1][2]]
    (given,) = run.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("governed traces", "0" * 36)


@contextmanager
def relay(port: int, server: str) -> Generator[None]:
    """What is sent to `port` reaches `server`, until the block ends: then each connection is cut."""
    listener = socket.create_server(("127.0.0.1", port))
    ends: list[socket.socket] = [listener]

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                one = listener.accept()[0]
                other = socket.create_connection(("127.0.0.1", int(server.rpartition(":")[2])))
                ends.extend((one, other))
                for pair in ((one, other), (other, one)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        for each in ends:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def test_server_that_is_away_gets_the_points_later(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # of 7, those of a request cut off last four minutes
    messages: list[str] = []
    with held_port() as held, ExitStack() as reached:
        port = held.getsockname()[1]
        training = Training(tmp_path, f"http://127.0.0.1:{port}", "away")
        reached.enter_context(relay(port, server))
        with training.sent(messages.append):
            training.train(range(5))
            wait_for(lambda: len(training.points()) == 5)
            assert messages == []
            reached.close()
            training.train(range(5, 10))
            wait_for(lambda: messages)
            training.train(range(10, 12))
        assert len(messages) == 1 and "they are sent when it does" in messages[0] and "gives no answer" in messages[0]
        with training.sent(messages.append):  # it begins while the server is still away
            training.train(range(12, 15))
            wait_for(lambda: len(messages) == 2)
            reached.enter_context(relay(port, server))
            wait_for(lambda: len(training.points()) == 15)
        assert training.points() == training.logged()
        assert len(training.runs()) == 1 and len(messages) == 2


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with held_port() as held:
        held.listen()
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


def test_silent_server_is_left_behind_at_the_end(silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "ENDS_WITHIN_S", 0.1)
    monkeypatch.setattr(mlflow_server, "TIMEOUTS_S", (1.0, 1.0))
    training = Training(tmp_path, silent, "silent")
    with training.sent(print) as sender:
        training.train(range(2))
    assert sender.is_alive() and sender.daemon, "nobody waited for it, and it holds no process"
    sender.join()


def test_failed_training_says_so_until_it_goes_on(server: str, tmp_path: Path) -> None:
    training = Training(tmp_path, server, "failing")
    with pytest.raises(RuntimeError, match="pre-empted"), training.sent(print):
        training.train(range(2))
        raise RuntimeError("pre-empted")
    assert [run.info.status for run in training.runs()] == ["FAILED"]
    with training.sent(print):
        training.train(range(2, 4))
        wait_for(lambda: [run.info.status for run in training.runs()] == ["RUNNING"])
    assert len(training.points()) == 4
