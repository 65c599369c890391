"""What holds of every gang, whatever its recipe, names and size."""

import re

import pytest
from hypothesis import given, settings

from k8s.render import render
from k8s.render.pod import labels

from .gangs import gangs
from .kubelet import environment, expand, pods

DNS_LABEL = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
LABEL_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
RANK = {
    "JobSet": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
    "batch/v1": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
    "batch.volcano.sh/v1alpha1": "metadata.annotations['volcano.sh/task-index']",
}
some = settings(max_examples=40)


@some
@given(gangs())
def test_world_size(gang):
    asked = [
        (result.template["spec"]["containers"][0]["resources"], len(result.names)) for result in pods(render(gang))
    ]
    assert sum(count for _, count in asked) == gang.nodes
    devices = sum(int(resources["limits"].get("nvidia.com/gpu", 0)) * count for resources, count in asked)
    assert devices == (gang.nodes * gang.processes if gang.instance.gpus else 0)


@some
@given(gangs())
def test_requests_are_limits_and_fit_the_node(gang):
    for result in pods(render(gang)):
        resources = result.template["spec"]["containers"][0]["resources"]
        requests = resources["requests"]
        assert requests == resources["limits"]
        assert _milli(requests["cpu"]) <= gang.instance.cpu_m
        assert _mib(requests["memory"]) <= gang.instance.memory_mib
        assert int(requests.get("vpc.amazonaws.com/efa", 0)) == (gang.instance.efa if gang.nodes > 1 else 0)
        (shm,) = (volume["emptyDir"] for volume in result.template["spec"]["volumes"] if volume["name"] == "shm")
        assert _mib(shm["sizeLimit"]) <= _mib(requests["memory"])


@some
@given(gangs())
def test_names_and_labels_are_legal(gang):
    objects = render(gang)
    for obj in objects:
        assert obj["metadata"]["name"] == gang.name
        assert obj["metadata"]["namespace"] == gang.settings.namespace
        assert labels(gang).items() <= obj["metadata"]["labels"].items()
    for result in pods(objects):
        assert all(re.fullmatch(DNS_LABEL, name) for name in result.names)
        assert all(re.fullmatch(DNS_LABEL, part) for host in result.hosts for part in host.split("."))
        assert result.template["metadata"]["labels"] == labels(gang)
    assert all(re.fullmatch(LABEL_VALUE, value) for value in labels(gang).values())


@some
@given(gangs())
def test_a_pod_starts_the_trainer_of_its_rank(gang):
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


@some
@given(gangs())
def test_environment_is_as_given_and_each_name_once(gang):
    own = {"NODE_RANK", "RAY_ENABLE_UV_RUN_RUNTIME_ENV", "RAY_USAGE_STATS_ENABLED"}
    for result in pods(render(gang)):
        variables = result.template["spec"]["containers"][0]["env"]
        assert len({variable["name"] for variable in variables}) == len(variables)
        values = {variable["name"]: expand(variable["value"], {}) for variable in variables if "value" in variable}
        reserved = {variable["name"] for variable in variables if "valueFrom" in variable} | own & values.keys()
        for name, value in {**gang.settings.env, **gang.pipes}.items():
            assert name in reserved or values[name] == value


@pytest.mark.shared
@settings(max_examples=25)
@given(gang=gangs())
def test_the_api_server_takes_it(gang, shared_data):
    from ..schemas import problems

    assert [problem for obj in render(gang) for problem in problems(obj)] == []


def _milli(quantity):
    return int(quantity[:-1]) if quantity.endswith("m") else int(quantity) * 1000


def _mib(quantity):
    return int(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]
