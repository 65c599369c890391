"""The tail of a log: what people see of it, whatever is in it."""

from pathlib import Path

import pytest

from k8s.follow import KEPT, LogTail
from k8s.gang import Gang, example
from k8s.observe import Observed, PodSeen
from pipeline.recipe import Kubernetes

POD = PodSeen("pod-0", 0, "Running", None, "", "", "", "")
RUNNING = Observed("running", pods=(POD,))


class Logs:
    """What the API would answer, by whole seconds, as it does."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.asked: list[str] = []

    def log(self, namespace: str, pod: str, container: str, since: str = "") -> list[str]:
        self.asked.append(since)
        return [line for line in self.lines if line[:19] >= since[:19]]

    def add(self, second: int, text: str, nanos: int = 0) -> None:
        self.lines.append(f"2026-01-05T10:00:{second:02}.{nanos:09}Z {text}")


@pytest.fixture
def gang(tmp_path: Path) -> Gang:
    return example("x", str(tmp_path), 1, 1, "trl", 100, 600, Kubernetes(image="i@sha256:0", instance_type="cpu"))


def test_each_line_is_told_once_although_a_second_is_asked_for_again(gang: Gang) -> None:
    logs, told = Logs(), list[str]()
    tail = LogTail(logs, gang, told.append, lambda line: False)  # type: ignore[arg-type]
    for step in range(6):
        logs.add(step // 2, f"training: step {step}", nanos=step)
        tail.follow(RUNNING)
    assert told == [f"training: step {step}" for step in range(6)]
    assert logs.asked[-1] == "2026-01-05T10:00:02Z"


@pytest.mark.parametrize("noise", ["Loading: 10%\rLoading: 50%", "a\x0bb", "a\u2028b", "a\x85b", "", "\r"])
def test_noise_does_not_end_the_tail(gang: Gang, noise: str) -> None:
    logs, told = Logs(), list[str]()
    tail = LogTail(logs, gang, told.append, lambda line: False)  # type: ignore[arg-type]
    logs.add(1, noise)
    tail.follow(RUNNING)
    logs.add(2, "training: step 1")
    tail.follow(RUNNING)
    assert told == ["training: step 1"]


def test_the_last_lines_are_kept_for_a_report(gang: Gang) -> None:
    logs = Logs()
    tail = LogTail(logs, gang, lambda line: None, lambda line: "taken" in line)  # type: ignore[arg-type]
    for number in range(KEPT + 5):
        logs.add(number // 60, f"line {number}", nanos=number)
    logs.add(59, "taken by Pipes")
    tail.follow(RUNNING)
    assert tail.last().splitlines()[-1] == f"line {KEPT + 4}"
    assert len(tail.last().splitlines()) == KEPT + 2
    assert "taken" not in tail.last()
