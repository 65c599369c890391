"""Two generations of a gang under one attempt and one restart, as a queue makes them: only the later one writes."""

import time
from pathlib import Path
from typing import Any

import pytest

from k8s.gang import example
from k8s.render import render
from pipeline.recipe import Compute, Training
from pipeline.training.checkpoints.writer import holder

from .conftest import Cluster

TRAINER = """
import sys, time
from pathlib import Path
from pipeline.training.checkpoints.writer import check, parse, take
from pipeline.training.result import InvalidPlan
plan, _, attempt, _, start = sys.argv[1:6]
folder, turn = Path(plan).parent, parse(attempt, start)
try:
    take(folder, turn)
    (folder / f"{turn.pod}.up").touch()
    while not (folder / f"{turn.pod}.go").exists():
        time.sleep(0.02)
    check(folder, turn)
    (folder / "writers").open("a").write(f"{turn.pod} ")
except InvalidPlan:
    (folder / f"{turn.pod}.fenced").touch()
    sys.exit(64)
"""
"""What a trainer does with its turn, without the training, and without the lock, which a node that is cut off has lost.
"""


@pytest.mark.slow
def test_a_generation_that_was_cut_off_cannot_write_again(cluster: Cluster, tmp_path: Path) -> None:
    gang = example(
        "fence", str(tmp_path), Compute(kubernetes=cluster.settings(tmp_path)), Training(grace_s=5, timeout_s=600)
    )
    (jobset,) = render(gang)
    del jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]  # the test is its queue
    pods = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pods["containers"][0]["command"][1:3] = ["-c", TRAINER]
    folder = Path(gang.plan_path).parent
    folder.mkdir(parents=True)

    def started(but: str = "") -> str:
        """The uid of the pod that has taken its turn."""
        return cluster.driver.wait_until(
            lambda: next((path.stem for path in folder.glob("*.up") if path.stem != but), ""), "a trainer"
        )

    with cluster.kubelet(tmp_path / "logs") as kubelet:
        cluster.api.create(jobset)
        first = started()
        (pod,) = cluster.pods(1)
        kubelet.cut_off(pod["spec"]["nodeName"])
        unreachable = [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]
        cluster.api.patch("Node", "", pod["spec"]["nodeName"], {"spec": {"taints": unreachable}})
        cluster.driver.wait_until(lambda: _later(folder), "the next second of the API server's clock")
        _suspend(cluster, gang.name, True)
        cluster.driver.wait_until(lambda: _deleted(cluster, pod), "its deletion")
        cluster.api.delete("Pod", cluster.namespace, pod["metadata"]["name"], grace_s=0)  # by force, as people do
        cluster.driver.wait_until(lambda: not cluster.driver.pods(cluster.namespace), "no pod")
        _suspend(cluster, gang.name, False)
        second = started(but=first)
        assert holder(folder).pod == second
        (again,) = cluster.pods(1)
        assert again["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == "0", (
            "no other number tells them apart"
        )

        (folder / f"{first}.go").touch()  # the network is back
        cluster.driver.wait_until((folder / f"{first}.fenced").exists, "its end")
        (folder / f"{second}.go").touch()
        cluster.driver.wait_for("JobSet", cluster.namespace, gang.name, "Completed")
    assert (folder / "writers").read_text().split() == [second]


def _suspend(cluster: Cluster, name: str, suspend: bool) -> None:
    cluster.api.patch("JobSet", cluster.namespace, name, {"spec": {"suspend": suspend}})


def _deleted(cluster: Cluster, pod: dict[str, Any]) -> bool:
    current = cluster.api.find("Pod", cluster.namespace, pod["metadata"]["name"])
    return current is None or "deletionTimestamp" in current["metadata"]


def _later(folder: Path) -> bool:
    return int(time.time()) > holder(folder).started_at
