"""The lint's schemas refuse what an API server refuses. What we ship and render passes them elsewhere."""

import copy
from typing import Any

import pytest

from k8s.render import render

from . import run_job
from .lint.cases import GONE, put
from .manifests import of_kind, overlay
from .render.golden import CASES
from .schemas import known, problems

POD = "spec.replicatedJobs.0.template.spec.template.spec"
REQUIREMENT = "spec.template.spec.requirements.0"
MANY = {"key": "karpenter.k8s.aws/instance-cpu", "operator": "Gt", "values": ["many"]}
REFUSED = [
    ("JobSet", f"{POD}.gpus", 8, "'gpus' was unexpected"),
    ("JobSet", f"{POD}.containers", GONE, "'containers' is a required property"),
    ("Job", "metadata.labels.replicas", 3, "3 is not of type 'string'"),
    ("NodePool", "spec.weight", 101, "greater than the maximum"),
    ("NodePool", f"{REQUIREMENT}.key", "karpenter.sh/spot", 'label domain "karpenter.sh" is restricted'),
    ("NodePool", REQUIREMENT, MANY, "must have a single positive integer value"),
    ("EC2NodeClass", "spec.instanceProfile", "node", "exactly one of"),
    ("EC2NodeClass", "spec.amiSelectorTerms.0.alias", "debian@latest", "family is not supported"),
    ("HTTPRoute", "spec.rules.0.backendRefs.0.weight", 0.9, "not of type 'integer'"),
]


def shipped(kind: str) -> dict[str, Any]:
    if kind == "Job":
        return run_job.kept()
    objects = render(CASES["jobset-cpu"]) if kind == "JobSet" else of_kind(overlay("eks-spot-h200"), kind)
    return copy.deepcopy(objects[0])


@pytest.mark.shared
@pytest.mark.parametrize(("kind", "path", "value", "problem"), REFUSED)
def test_what_an_api_server_refuses_is_a_problem(
    kind: str, path: str, value: object, problem: str, shared_data: object
) -> None:
    obj = shipped(kind)
    assert known(obj) and problems(obj) == []
    put(obj, path, value)
    found = problems(obj)
    assert any(problem in text for text in found), found


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [("kueue.x-k8s.io/v1beta2", "Workload"), ("../v1", "Pod"), ("v1", "../Pod"), ("", ""), ("example.com/v1", "Pod")],
)
def test_a_kind_without_a_schema_is_not_known_and_never_right(api_version: str, kind: str) -> None:
    obj = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}}
    assert not known(obj)
    assert problems(obj)
