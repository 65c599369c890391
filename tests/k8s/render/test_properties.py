"""What holds of every gang of a training."""

import pytest

from k8s.gang import Gang
from k8s.render import render

from .golden import CASES
from .kubelet import environment, expand, pods

RANK = {
    "JobSet": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
    "batch/v1": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
    "batch.volcano.sh/v1alpha1": "metadata.annotations['volcano.sh/task-index']",
}


TRAININGS = {name: gang for name, gang in CASES.items() if gang.task == "training"}
every_gang = pytest.mark.parametrize("gang", TRAININGS.values(), ids=TRAININGS)


@every_gang
def test_requests_are_limits_and_fit_the_node(gang: Gang) -> None:
    for result in pods(render(gang)):
        resources = result.template["spec"]["containers"][0]["resources"]
        requests = resources["requests"]
        assert requests == resources["limits"]
        assert _milli(requests["cpu"]) <= gang.instance.cpu_m
        assert _mib(requests["memory"]) <= gang.instance.memory_mib
        assert int(requests.get("vpc.amazonaws.com/efa", 0)) == (gang.instance.efa if gang.nodes > 1 else 0)
        (shm,) = (volume["emptyDir"] for volume in result.template["spec"]["volumes"] if volume["name"] == "shm")
        assert _mib(shm["sizeLimit"]) <= _mib(requests["memory"])


@every_gang
def test_a_pod_starts_the_trainer_of_its_rank(gang: Gang) -> None:
    objects = render(gang)
    if objects[0]["kind"] == "RayJob":
        return
    kind = objects[0]["kind"] if objects[0]["kind"] == "JobSet" else objects[0]["apiVersion"]
    (result,) = pods(objects)
    rank = gang.nodes - 1
    known = environment(result.template, {RANK[kind]: str(rank)})
    ran = [expand(word, known) for word in result.template["spec"]["containers"][0]["command"]]
    assert ran[:6] == ["python", "-m", "pipeline.training", gang.plan_path, "--attempt", str(gang.attempt)]
    several = ["--node-rank", str(rank), "--master", f"{result.hosts[0]}:29500"]
    assert ran[6:] == (several if gang.nodes > 1 else [])


def _milli(quantity):
    return int(quantity[:-1]) if quantity.endswith("m") else int(quantity) * 1000


def _mib(quantity):
    return int(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]
