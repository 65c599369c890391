"""The schemas of the tests say yes to what an API server takes and no to what it refuses."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from .schemas import known, problems, unchecked

Object = dict[str, Any]

POD: Object = {
    "metadata": {"labels": {"app": "trainer"}},
    "spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "trainer", "image": "trainer", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
    },
}
OBJECTS: dict[str, Object] = {
    "JobSet": {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"replicatedJobs": [{"name": "trainer", "replicas": 1, "template": {"spec": {"template": POD}}}]},
    },
    "Job": {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "default", "labels": {"app.kubernetes.io/name": "x"}},
        "spec": {"template": POD},
    },
    "NodePool": {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "spot"},
        "spec": {
            "template": {
                "spec": {
                    "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"},
                    "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}],
                }
            }
        },
    },
    "EC2NodeClass": {
        "apiVersion": "karpenter.k8s.aws/v1",
        "kind": "EC2NodeClass",
        "metadata": {"name": "gpu"},
        "spec": {
            "role": "node",
            "amiSelectorTerms": [{"alias": "al2023@v20251103"}],
            "subnetSelectorTerms": [{"tags": {"karpenter.sh/discovery": "x"}}],
            "securityGroupSelectorTerms": [{"tags": {"karpenter.sh/discovery": "x"}}],
        },
    },
    "HTTPRoute": {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "model", "namespace": "default"},
        "spec": {
            "parentRefs": [{"name": "gateway", "namespace": "gateways"}],
            "rules": [{"backendRefs": [{"name": "champion", "port": 80}, {"name": "canary", "port": 80, "weight": 0}]}],
        },
    },
}


def put(*path: str | int, value: object) -> Callable[[Object], None]:
    def mutate(obj: Any) -> None:
        for step in path[:-1]:
            obj = obj[step]
        obj[path[-1]] = value

    return mutate


def drop(*path: str | int) -> Callable[[Object], None]:
    def mutate(obj: Any) -> None:
        for step in path[:-1]:
            obj = obj[step]
        del obj[path[-1]]

    return mutate


TEMPLATE = ("spec", "replicatedJobs", 0, "template", "spec", "template")
REQUIREMENT = ("spec", "template", "spec", "requirements", 0)
REFUSED = [
    ("JobSet", put(*TEMPLATE, "spec", "gpus", value=8), "'gpus' was unexpected"),
    ("JobSet", put("spec", "nodes", value=3), "'nodes' was unexpected"),
    ("JobSet", drop(*TEMPLATE, "spec", "containers"), "'containers' is a required property"),
    ("JobSet", put("metadata", "owner", value="me"), "'owner' was unexpected"),
    ("JobSet", put("metadata", "name", value=7), "7 is not of type"),
    ("Job", put("spec", "template", "spec", "gpus", value=8), "'gpus' was unexpected"),
    ("Job", put("metadata", "labels", "replicas", value=3), "3 is not of type 'string'"),
    ("NodePool", drop("spec", "template", "spec", "nodeClassRef", "group"), "'group' is a required property"),
    ("NodePool", put("spec", "weight", value=101), "greater than the maximum"),
    ("NodePool", put(*REQUIREMENT, "key", value="karpenter.sh/spot"), 'label domain "karpenter.sh" is restricted'),
    ("NodePool", put(*REQUIREMENT, "values", value=[]), "must have a value"),
    (
        "NodePool",
        put(*REQUIREMENT, value={"key": "karpenter.k8s.aws/instance-cpu", "operator": "Gt", "values": ["many"]}),
        "must have a single positive integer value",
    ),
    ("EC2NodeClass", put("spec", "instanceProfile", value="node"), "exactly one of"),
    ("EC2NodeClass", put("spec", "amiFamily", value="AL2"), "amiFamily must be 'AL2023'"),
    ("EC2NodeClass", put("spec", "amiSelectorTerms", 0, "alias", value="debian@latest"), "family is not supported"),
    ("HTTPRoute", put("spec", "rules", 0, "backendRefs", 0, "weight", value=0.9), "not of type 'integer'"),
]


@pytest.mark.shared
@pytest.mark.parametrize("kind", OBJECTS)
def test_schema_decides_every_rule_of_a_valid_object(kind: str, shared_data: object) -> None:
    assert known(OBJECTS[kind])
    assert problems(OBJECTS[kind]) == []
    assert kind not in unchecked()


@pytest.mark.shared
@pytest.mark.parametrize(("kind", "mutate", "problem"), REFUSED)
def test_what_an_api_server_refuses_is_a_problem(
    kind: str, mutate: Callable[[Object], None], problem: str, shared_data: object
) -> None:
    obj = copy.deepcopy(OBJECTS[kind])
    mutate(obj)
    result = problems(obj)
    assert any(problem in text for text in result), result


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [("kueue.x-k8s.io/v1beta2", "Workload"), ("../v1", "Pod"), ("v1", "../Pod"), ("", ""), ("example.com/v1", "Pod")],
)
def test_a_kind_without_a_schema_is_not_known_and_never_right(api_version: str, kind: str) -> None:
    obj = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}}
    assert not known(obj)
    assert problems(obj)
