"""A cluster for a test: our own API server with its controllers, or, with KUBECONFIG set, the one that it names.

There the tests bring their own namespace, nodes and queue, and remove them; nothing is asked of its kubelets.
"""

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from k8s.client import KubernetesClient, connect
from k8s.launch import Hooks, launch
from pipeline.core.storage import CheckpointRef, Store, model_ref
from pipeline.recipe import Kubernetes
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult
from tests.pipeline.training.plans import make_plan

from .cluster.api import Api
from .cluster.controllers import controllers
from .cluster.kubelet import Kubelet
from .cluster.objects import ended
from .cluster.pod_driver import POOL, PodDriver
from .cluster.server import Server, api_server
from .policies import launcher_account
from .run_job import platform_python

REAL = os.environ.get("KUBECONFIG", "")
IMAGE = "registry.example.com/preference-tuning/trainer@sha256:" + "0" * 64
ROOM = {"cpu": "64", "memory": "256Gi"}
NODES = 3
GANG = {"jobset": 2, "volcano": 2, "rayjob": 3}
"""By backend, the pods of two nodes: the third submits to Ray."""
LOGS = "a real API server asks the node's kubelet for a pod's log, and the played one does not answer it"


@dataclass
class Cluster:
    """One namespace of a cluster, and driver in place of its kubelets."""

    api: Api
    kubeconfig: Path
    """Of a launcher's account: with the rights that the manifests give it, and their policies."""
    owner: Path
    """Of the tests' own, which may do everything."""
    namespace: str
    server: Server | None
    """None: it is a real one."""
    driver: PodDriver = field(init=False)

    def __post_init__(self) -> None:
        self.driver = PodDriver(self.api, home=f"{self.namespace}-0", pool=self.namespace)

    def connect(self, as_owner: bool = False) -> KubernetesClient:
        """A client that does not wait long before it tries again. `as_owner`: in other namespaces too."""
        client = connect(str(self.owner if as_owner else self.kubeconfig))
        client.pauses_s = (0.02, 0.05)
        return client

    @property
    def ours(self) -> Server:
        """The tests' own server, for what only it can do."""
        if self.server is None:
            pytest.skip("counts the requests of the tests' own API server, breaks it, or gives it accounts")
        return self.server

    def asked(self, verb: str, kind: str) -> list[str] | None:
        """The paths of what the server was asked; None: of a real one nobody knows."""
        if self.server is None:
            return None
        return [each.path for each in self.server.requests if (each.verb, each.call.kind) == (verb, kind)]

    def kubelet(self, folder: Path, **options: Any) -> Kubelet:
        """Of this cluster's nodes alone. Of a real one nobody can read the logs of what it runs."""
        kubelet = Kubelet(self.api, folder, nodes=[f"{self.namespace}-{number}" for number in range(NODES)], **options)
        if self.server is not None:
            self.server.logs = kubelet.logs
        return kubelet

    def settings(self, root: Path, **changes: Any) -> Kubernetes:
        """Of gangs that any node takes."""
        given = {
            "image": IMAGE,
            "instance_type": "cpu",
            "namespace": self.namespace,
            "mount": str(root),
            "poll_s": 0.05,
        }
        return Kubernetes(**{**given, "shm_gb": 1, "service_account": "default", "start_timeout_s": 600.0, **changes})

    def pods(self, number: int = 2) -> list[dict[str, Any]]:
        """That many of the gang, once they are there."""
        return self.driver.wait_for_pods(number, self.namespace)

    def run_all(self, number: int = 2) -> list[dict[str, Any]]:
        """The gang's pods, once they run."""
        pods = self.pods(number)
        for pod in pods:
            self.driver.run(pod)
        matches = [self.api.find("Pod", self.namespace, pod["metadata"]["name"]) for pod in pods]
        return [pod for pod in matches if pod is not None]

    def run_gang(self, backend: str) -> list[dict[str, Any]]:
        """All pods of the backend's gang of two nodes, once they run."""
        if backend == "rayjob":
            self.run_all(GANG[backend] - 1)  # the submitter comes once the cluster is up
        return self.run_all(GANG[backend])

    def jobsets(self) -> list[dict[str, Any]]:
        return self.api.list("JobSet", self.namespace)[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if REAL and item.get_closest_marker("pods"):
            item.add_marker(pytest.mark.skip(reason=LOGS))


@pytest.fixture
def platform() -> str:
    """The Python that has what the platform's pods run."""
    if python := platform_python():
        return python
    pytest.skip("dagster-k8s and dagster-aws are not installed (extra platform), and DAGSTER_K8S_PYTHON is not set")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    name = f"gang-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        server: Server | None = None
        owner = kubeconfig = Path(REAL)
        if not REAL:
            server = stack.enter_context(api_server())
            stack.enter_context(controllers(server.storage))
            owner = server.kubeconfig(tmp_path / "owner")
            kubeconfig = server.kubeconfig(tmp_path / "kubeconfig", account=launcher_account(name))
        api = Api.from_kubeconfig(owner)
        result = Cluster(api, kubeconfig, owner, name, server)
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        stack.callback(_remove, api, name)
        for number in range(NODES):
            result.driver.node(f"{name}-{number}", ROOM)
        if server is not None:  # a real one makes it by itself, a moment later
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
            with suppress(httpx2.HTTPStatusError, KeyError):
                api.create(account)
        claim(result)
        queue(result, ROOM)
        yield result


def claim(cluster: Cluster) -> None:
    """The claim `checkpoints`, which the volume controller binds to a volume of its uid."""
    name, size, core = cluster.namespace, {"storage": "1Gi"}, {"apiVersion": "v1"}
    of = {"storageClassName": "", "accessModes": ["ReadWriteMany"]}
    reference = {"kind": "PersistentVolumeClaim", "namespace": name, "name": "checkpoints"}
    metadata = {"name": "checkpoints", "namespace": name}
    wanted = {**of, "volumeName": name, "resources": {"requests": size}}
    made = cluster.api.create({**core, "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": wanted})
    reference |= core | {"uid": made["metadata"]["uid"]}
    volume = {**of, "capacity": size, "claimRef": reference, "nfs": {"server": "127.0.0.1", "path": "/"}}
    cluster.api.create({**core, "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume})

    def phase() -> str:
        result = cluster.api.find("PersistentVolumeClaim", name, "checkpoints") or {}
        return (result.get("status") or {}).get("phase", "")

    cluster.driver.wait_until(lambda: phase() == "Bound", "the claim's volume")


def queue(cluster: Cluster, quota: dict[str, str], strategy: str = "BestEffortFIFO") -> None:
    """Kueue's queue `training` with that quota; an earlier one is changed."""
    name = cluster.namespace
    kueue = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    spec = {
        "namespaceSelector": {},
        "queueingStrategy": strategy,
        "resourceGroups": [{"coveredResources": list(quota), "flavors": [{"name": name, "resources": resources}]}],
    }
    if cluster.api.find("ClusterQueue", "", name):
        cluster.api.patch("ClusterQueue", "", name, {"spec": spec})
        return
    pool = {"nodeLabels": {POOL: name}}
    cluster.api.create({**kueue, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": pool})
    cluster.api.create({**kueue, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec})
    local = {"metadata": {"name": "training", "namespace": name}, "spec": {"clusterQueue": name}}
    cluster.api.create({**kueue, "kind": "LocalQueue", **local})


def _remove(api: Api, name: str) -> None:
    """Pods by force: no kubelet will ever say that they have ended."""
    with suppress(httpx2.HTTPError):
        for pod in api.list("Pod", name)[0]:
            api.delete("Pod", name, pod["metadata"]["name"], grace_s=0)
    for kind in ("ClusterQueue", "ResourceFlavor", "Namespace", "PersistentVolume"):
        with suppress(httpx2.HTTPError):
            api.delete(kind, "", name)
    for number in range(NODES):
        with suppress(httpx2.HTTPError):
            api.delete("Node", "", f"{name}-{number}")


@pytest.fixture
def planned(tmp_path: Path) -> tuple[Store, TrainingPlan]:
    """A published plan of two nodes with a process each."""
    store, plan = make_plan(tmp_path / "data", processes=2)
    plan = plan.model_copy(update={"nodes": 2, "processes": 1})
    store.write(f"iterations/{plan.iteration}/training/plan.json", plan)
    return store, plan


def leave_result(store: Store, plan: TrainingPlan) -> TrainingResult:
    """What a trainer leaves when it is done."""
    model = model_ref(Path(plan.base.uri))
    result = TrainingResult(
        iteration=plan.iteration,
        plan_digest=plan.digest(),
        checkpoint=CheckpointRef(adapter=model, model=model, step=6),
        metrics=(),
        seconds=1.0,
        attempts=1,
        resumed_from=(),
    )
    store.write(f"iterations/{plan.iteration}/training/result.json", result)
    return result


class Launch(threading.Thread):
    """A launch in a thread of its own; `join` and look at what came of it."""

    def __init__(
        self, cluster: Cluster, planned: tuple[Store, TrainingPlan], settings: Kubernetes,
        client: KubernetesClient | None = None, **hooks: Any,
    ) -> None:  # fmt: skip
        super().__init__(daemon=True)
        self.lines: list[str] = []
        self.result: TrainingResult | None = None
        self.error: BaseException | None = None
        self.client = client or cluster.connect()
        self._call = (*planned, settings, self.client, Hooks(**{"log": self.lines.append, **hooks}))
        self.start()

    def run(self) -> None:
        try:
            self.result = launch(*self._call)
        except BaseException as error:  # whatever it is, the test looks at it
            self.error = error

    def ended(self, within_s: float = 120) -> BaseException | None:
        """Its error, or None, once it has ended."""
        self.join(within_s)
        assert not self.is_alive(), self.lines
        return self.error


def once_told(launched: "list[Launch]", words: str) -> Callable[[], float]:
    """A clock that goes on by an hour with each look, once the launch has logged these words."""
    hours = [0]

    def now() -> float:
        hours[0] += any(words in line for each in launched for line in each.lines)
        return time.time() + 3600 * hours[0]

    return now


def ender(cluster: Cluster) -> Any:
    """Ends what is deleted, as kubelets do."""

    class Ender(threading.Thread):
        stop = threading.Event()

        def run(self) -> None:
            while not self.stop.wait(0.05):
                for pod in cluster.driver.pods(cluster.namespace):
                    if "deletionTimestamp" in pod["metadata"]:
                        cluster.driver.end(pod)

        def __enter__(self) -> None:
            self.start()

        def __exit__(self, *_: object) -> None:
            self.stop.set()
            self.join()

    return Ender(daemon=True)


def those_that_end(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a gang's pods those that end by themselves: Ray's head and workers stay until KubeRay deletes them."""
    return [pod for pod in pods if pod["spec"]["containers"][0]["name"] == "submitter"] or pods


class Robot(threading.Thread):
    """A kubelet that only plays: pods run at once, and end with 0 once all of them ran."""

    def __init__(self, cluster: Cluster, planned: tuple[Store, TrainingPlan], number: int = 2) -> None:
        super().__init__(daemon=True)
        self.cluster, self.planned, self.number = cluster, planned, number
        self.writers: list[set[str]] = []
        """By look, the attempts of the pods that ran at once."""
        self._ended = threading.Event()

    def __enter__(self) -> "Robot":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(10)

    def run(self) -> None:
        while not self._ended.wait(0.05):
            with suppress(httpx2.HTTPError):  # a pod that went meanwhile
                self._look()

    def _look(self) -> None:
        driver = self.cluster.driver
        pods = driver.pods(self.cluster.namespace)
        running = [pod for pod in pods if pod.get("status", {}).get("phase") == "Running"]
        self.writers.append({pod["metadata"]["labels"]["preference-tuning/attempt"] for pod in running})
        for pod in pods:
            if "deletionTimestamp" in pod["metadata"]:
                driver.end(pod)
            elif pod not in running and not ended(pod):
                driver.run(pod)
        if len(running) == self.number:
            leave_result(*self.planned)
            for pod in those_that_end(running):
                driver.finish(pod, 0)
