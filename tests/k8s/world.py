"""A launch's surroundings in one thread: the API in memory, a clock of its own, and what becomes of the gang.

Each pause of the launch does the next step of the script: the gang runs, a pod ends, an hour passes. Where the pods are
real, they are child processes of the test.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from k8s.attempts import GangAttempts
from k8s.follow import Hooks
from k8s.launch import Task, run, training_task
from k8s.observe import KINDS
from pipeline.core.storage import CheckpointRef, Store, model_ref
from pipeline.recipe import Kubernetes
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult
from tests.fork_server import ForkedProcess, ForkServer

from .fake_api import Answer, FakeApi, Key, Object, key_of

IMAGE = "registry.example.com/preference-tuning/trainer@sha256:" + "1" * 64
BACKENDS = ("jobset", "volcano", "rayjob")
FOREVER_S = 1e5


class Killed(BaseException):
    """The launcher's end, which tells nobody."""


def kill() -> None:
    raise Killed


class Planned(NamedTuple):
    """A training whose plan is published."""

    store: Store
    plan: TrainingPlan

    def task(self, **settings: Any) -> Task[TrainingResult]:
        """On gangs that any node takes."""
        return training_task(self.store, self.plan, cluster_settings(**settings))

    def attempts(self) -> list[tuple[int, str]]:
        """Number and outcome of each."""
        return [(each.attempt, each.outcome) for each in GangAttempts(self.store, self.plan.iteration).all()]

    def trained(self) -> TrainingResult:
        """Leave what a trainer leaves when it is done."""
        model = model_ref(Path(self.plan.base.uri))
        result = TrainingResult(
            iteration=self.plan.iteration,
            plan_digest=self.plan.digest(),
            checkpoint=CheckpointRef(adapter=model, model=model, step=6),
            metrics=(),
            seconds=1.0,
            attempts=1,
            resumed_from=(),
        )
        self.store.write(f"iterations/{self.plan.iteration}/training/result.json", result)
        return result


def cluster_settings(**changes: Any) -> Kubernetes:
    given = {"image": IMAGE, "instance_type": "cpu", "service_account": "default", "shm_gb": 1}
    return Kubernetes.model_validate(given | {"start_timeout_s": 600.0} | changes)


def overrides(root: Path, **changes: Any) -> list[str]:
    """A recipe's, for a deployment at this data root whose trainings run on such gangs."""
    placed = cluster_settings(mount=str(root.parent), **changes).model_dump(mode="json", exclude_defaults=True)
    return [f"data_root={root}", f"compute.kubernetes={yaml.safe_dump(placed)}"]


class World(FakeApi):
    """`script`: what happens in each pause of a launch, one step after the other."""

    def __init__(self, *script: Callable[[], object]) -> None:
        super().__init__()
        self.now, self.lines = 0.0, list[str]()
        self.script = [*script]
        self.made: list[str] = []
        """Names of the objects that were applied, each time."""

    def launch(self, task: Task[Any], **hooks: Any) -> Any:
        given = {"log": self.lines.append, "now": lambda: self.now, "sleep": self.sleep} | hooks
        return run(task, self.client(), Hooks(**given))

    def fails(self, task: Task[Any], **hooks: Any) -> BaseException:
        """What the launch raises."""
        try:
            self.launch(task, **hooks)
        except BaseException as error:  # whatever it is, the test looks at it
            return error
        raise AssertionError(f"it ended well: {self.lines}")

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.script:
            self.script.pop(0)()
        assert self.now < FOREVER_S, self.lines

    def told(self, words: str) -> bool:
        return any(words in line for line in self.lines)

    def applied(self, key: Key, obj: Object) -> Answer:
        self.made.append(obj["metadata"]["name"])
        return super().applied(key, obj)

    def gangs(self) -> list[Object]:
        return [obj for key, obj in self.objects.items() if key[1] in ("jobsets", "jobs", "rayjobs")]

    def pods(self) -> list[Object]:
        return [obj for key, obj in self.objects.items() if key[1] == "pods"]

    def run(self) -> None:
        """The gang's pods come, and all of them run."""
        (gang,) = self.gangs()
        names = ["0", "1"] if gang["kind"] != "RayJob" else ["head", "worker", "submitter"]
        for name in names:
            self.add_pod(gang, name)
        self.set_state("running")

    def add_pod(self, gang: Object, name: str, owned: bool = True) -> None:
        """A running pod of a gang; where it is not `owned`, it outlives the gang's object."""
        meta, at = gang["metadata"], f"{gang['metadata']['name']}-trainer-0-{name}"
        labels = meta["labels"] | {"batch.kubernetes.io/job-completion-index": name}
        metadata = {"name": at, "labels": labels, "ownerReferences": [{"uid": meta["uid"]}] * owned}
        container = "submitter" if name == "submitter" else "trainer"
        pod = {"metadata": metadata, "spec": {"containers": [{"name": container}]}, "status": {"phase": "Running"}}
        self.put(key_of("Pod", at), pod)

    def end(self, code: int, reason: str = "", of: str = "0") -> None:
        """A pod of the gang ends so, and the gang with it."""
        (pod,) = (pod for pod in self.pods() if pod["metadata"]["name"].endswith(f"-{of}"))
        state = {"terminated": {"exitCode": code, "reason": reason}}
        statuses = [{"name": pod["spec"]["containers"][0]["name"], "state": state}]
        phase = "Failed" if code else "Succeeded"
        self.change(key_of("Pod", pod["metadata"]["name"]), status={"phase": phase, "containerStatuses": statuses})
        self.set_state("failed" if code else "succeeded", f"command failed with exit code {code}, last")

    def set_state(self, state: str, why: str = "") -> None:
        """Of the gang's object, in its controller's words."""
        (gang,) = self.gangs()
        if gang["kind"] == "JobSet":
            kind = {"failed": "Failed", "succeeded": "Completed"}.get(state)
            ended = [{"type": kind, "status": "True", "reason": state, "message": why}] if kind else []
            status: Object = {"conditions": ended, "replicatedJobsStatus": [{"ready": int(state == "running")}]}
        elif gang["kind"] == "RayJob":
            deployed = {"running": "Running", "failed": "Failed", "succeeded": "Complete"}[state]
            status = {"jobStatus": state.upper(), "jobDeploymentStatus": deployed, "message": why}
        else:
            phase = {"running": "Running", "failed": "Failed", "succeeded": "Completed"}[state]
            status = {"state": {"phase": phase, "message": why}}
        self.change(self.key(gang), status=status)

    def hold(self, words: str = "couldn't assign flavors") -> None:
        """Kueue holds the gang, and says why."""
        (gang,) = self.gangs()
        self.change(self.key(gang), spec=gang["spec"] | {"suspend": True})
        waits = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": words}
        metadata = {"name": "workload", "labels": {"kueue.x-k8s.io/job-uid": gang["metadata"]["uid"]}}
        self.put(key_of("Workload", "workload"), {"metadata": metadata, "status": {"conditions": [waits]}})

    def let_go(self) -> None:
        (gang,) = self.gangs()
        self.change(self.key(gang), spec=gang["spec"] | {"suspend": False})

    def key(self, gang: Object) -> Key:
        backend = {"JobSet": "jobset", "RayJob": "rayjob", "Job": "volcano"}[gang["kind"]]
        return key_of(KINDS[backend], gang["metadata"]["name"])

    def trains(self, planned: Planned) -> Sequence[Callable[[], object]]:
        """A script of a gang that comes to its end."""
        return (self.run, lambda: (planned.trained(), self.end(0, of=self._last())))

    def _last(self) -> str:
        return "submitter" if self.gangs()[0]["kind"] == "RayJob" else "0"


class Processes(World):
    """The one pod of a JobSet, or the entrypoint of a RayJob, as a process that `server` forks. `evict`: sends SIGTERM
    once, as soon as this is true. `arguments`: more of its command line.

    A pod that ends with 143 is started again, as the JobSet's failure policy has it.
    """

    def __init__(
        self, folder: Path, server: ForkServer, evict: Callable[[], bool] = lambda: False, arguments: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._folder, self._server, self._evict, self._arguments = folder, server, evict, arguments
        self._starts = 0
        self._child: ForkedProcess | None = None
        self.evicted = False

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def __enter__(self) -> Processes:
        return self

    def sleep(self, seconds: float) -> None:
        time.sleep(0.05)
        self.now += 0.05
        gangs = self.gangs()
        if not gangs:
            return
        if self._child is None:
            self._start(gangs[0])
        elif (code := self._child.poll()) is not None:
            if code == 143:
                self.objects = {key: obj for key, obj in self.objects.items() if key[1] != "pods"}
                self._start(gangs[0])
            else:
                self.end(code, of=self._last())
        elif not self.evicted and self._evict():
            self.evicted = True
            self._child.send_signal(signal.SIGTERM)

    def log(self, pod: str) -> str:
        """Lines as the API server gives them, each with its time in front."""
        lines = (self._folder / f"{self._starts}.log").read_text(errors="replace").split("\n")
        stamp = f"2026-01-05T{10 + self._starts}"
        return "\n".join(f"{stamp}:{n // 60:02}:{n % 60:02}.0Z {line}" for n, line in enumerate(lines[:-1]))

    def _start(self, gang: Object) -> None:
        self._starts += 1
        self.add_pod(gang, self._last())
        if gang["kind"] == "RayJob":
            pod = gang["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
            command = shlex.split(gang["spec"]["entrypoint"])
        else:
            (job,) = gang["spec"]["replicatedJobs"]
            pod = job["template"]["spec"]["template"]["spec"]
            command = pod["containers"][0]["command"]
        env = {each["name"]: each["value"] for each in pod["containers"][0]["env"] if "value" in each}
        with (self._folder / f"{self._starts}.log").open("wb") as output:
            line = [sys.executable, *command[1:], *self._arguments]
            self._child = self._server.popen(line, env=os.environ | env, stdout=output)
        self.set_state("running")
        (gang,) = self.gangs()
        self.change(self.key(gang), status=gang["status"] | {"restarts": self._starts - 1})
