"""What a launch waits out, and what it tells of it, without a cluster: an API in memory, a clock of its own."""

import itertools
from pathlib import Path

import pytest

from k8s.attempts import GangAttempts
from k8s.client import RESOURCES, Refused
from k8s.follow import STARTING_S, Hooks
from k8s.task import Task, run
from pipeline.core.storage import Store
from pipeline.training.launch import TrainingRefused

from .fake_api import Answer, FakeApi, Object, key_of, refusal
from .render.golden import gang

NO_RIGHT = 'jobsets.jobset.x-k8s.io "x" is forbidden: User "launcher" cannot get resource "jobsets" in API group'
QUOTA = 'jobsets.jobset.x-k8s.io "x" is forbidden: exceeded quota: objects, requested: 1, used: 1, limited: 1'


class World(FakeApi):
    """A launch's API and clock. `goes`: what happens to the gang's object with each pause."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.lines = 0.0, list[str]()
        self.gang = gang(nodes=1)

    def jobset(self) -> Object:
        return self.objects[key_of("JobSet", self.gang.name)]

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.turn()

    def turn(self) -> None:
        """The next look finds the gang done."""
        if key_of("JobSet", self.gang.name) in self.objects:
            self.jobset()["status"] = {"conditions": [{"type": "Completed", "status": "True"}]}

    def launch(self, root: Path) -> str:
        done = [False]

        def result() -> str | None:
            done[0] = done[0] or "succeeded" in str(self.lines)
            return "result" if done[0] else None

        task = Task(
            gang=lambda number: self.gang,
            attempts=GangAttempts(Store(root), "launch"),
            result=result,
            result_path=root / "result.json",
            left=set,
            refusal=TrainingRefused,
        )
        return run(task, self.client(), Hooks(log=self.lines.append, now=lambda: self.now, sleep=self.sleep))


@pytest.mark.parametrize("code", [401, 403])
def test_a_right_that_is_not_read_yet_is_waited_for(tmp_path: Path, code: int) -> None:
    world = World()
    world.fault = lambda verb, path: refusal(code, NO_RIGHT, "x") if world.now < STARTING_S - 10 else None
    assert world.launch(tmp_path) == "result"
    assert any("asking again" in line for line in world.lines)


@pytest.mark.parametrize(("message", "after_s"), [(NO_RIGHT, STARTING_S), (QUOTA, 0.0)])
def test_a_right_that_is_missing_ends_the_launch(tmp_path: Path, message: str, after_s: float) -> None:
    world = World()
    world.fault = lambda verb, path: refusal(403, message, "x")
    with pytest.raises(TrainingRefused):
        world.launch(tmp_path)
    assert after_s <= world.now <= after_s + 60


def test_a_list_that_has_expired_is_listed_again() -> None:
    api = FakeApi()
    expired = itertools.chain([Answer(410, {"message": "too old resource version"})], itertools.repeat(None))
    api.fault = lambda verb, path: next(expired)
    assert api.client().list(RESOURCES["Pod"], "x") == []
    with pytest.raises(Refused):
        api.fault = lambda verb, path: refusal(404, "no such kind", "")
        api.client().list(RESOURCES["Pod"], "x")


def test_words_that_differ_in_the_pod_set_alone_are_one_line(tmp_path: Path) -> None:
    world, sets = World(), itertools.cycle(["head", "trainer"])
    words = "couldn't assign flavors to pod set {}: insufficient unused quota for nvidia.com/gpu in flavor training"

    def turn() -> None:
        jobset = world.jobset()
        jobset["spec"]["suspend"] = True
        waits = {"type": "QuotaReserved", "status": "False", "message": words.format(next(sets))}
        metadata = {"name": "w", "labels": {"kueue.x-k8s.io/job-uid": jobset["metadata"]["uid"]}}
        world.put(key_of("Workload", "w"), {"metadata": metadata, "status": {"conditions": [waits]}})

    world.turn = turn
    with pytest.raises(TrainingRefused):
        world.launch(tmp_path)
    assert len([line for line in world.lines if "queued" in line]) == 1
