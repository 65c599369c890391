"""Every overlay builds, is right by schema, and holds together; and what the schemas refuse."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.lint import lint_gang
from k8s.pod import labels
from k8s.render import render
from pipeline.recipe import Kubernetes

from . import run_job
from .lint.cases import GONE, put
from .manifests import (
    MANIFESTS,
    Pods,
    dangling,
    gang_of,
    idle_selectors,
    misnamed,
    of_kind,
    open_namespaces,
    overlay,
    pod_specs,
    pods,
)
from .render.golden import CASES
from .schemas import known, problems, unchecked

EKS, A100, GKE = "eks-spot-h200", "eks-a100", "gke"
every_overlay = pytest.mark.parametrize("name", [EKS, A100, GKE])


def from_outside() -> list[Pods]:
    """Pods that the manifests don't make: a gang's, an evaluation's, and a Dagster run's (dagster_k8s labels those)."""
    run = {"app.kubernetes.io/component": "run_worker", "app.kubernetes.io/name": "preference-tuning"}
    return [
        Pods("preference-tuning", "a gang", labels(gang_of(EKS)), {}),
        Pods("preference-tuning", "an evaluation", labels(gang_of(EKS).model_copy(update={"task": "evaluation"})), {}),
        Pods("preference-tuning", "a run", run, {}),
    ]


@pytest.mark.slow
@every_overlay
@pytest.mark.shared
def test_every_object_passes_its_schema_and_rules(name: str, shared_data: Path) -> None:
    matches = [(obj["kind"], obj["metadata"]["name"], *problems(obj)) for obj in overlay(name) if problems(obj)]
    assert matches == []
    assert not unchecked()


@every_overlay
def test_the_objects_hold_together_and_deny_by_default(name: str) -> None:
    objects = overlay(name)
    assert misnamed(objects) == []
    assert dangling(objects) == []
    assert idle_selectors(objects, from_outside()) == []
    assert open_namespaces(objects) == []
    assert of_kind(objects, "Secret") == []


@every_overlay
@pytest.mark.parametrize("backend", ["jobset", "rayjob"])
@pytest.mark.parametrize("capacity", ["spot", "on_demand", "spot_first"])
def test_a_gang_is_admitted_and_its_nodes_can_come(name: str, backend: str, capacity: str) -> None:
    """By the lint's rules of quotas, flavours and pools."""
    gang = gang_of(name, backend=backend, capacity=capacity)
    found = lint_gang(gang, [*render(gang), *overlay(name)])
    assert not {each.rule for each in found} & {"quota-too-small", "queue-closed", "no-pool", "flavour-without-pool"}


@every_overlay
def test_images_are_pinned_and_name_their_registry(name: str) -> None:
    images = {
        container["image"]
        for obj in overlay(name)
        for pod in pod_specs(obj)
        for container in [*pod["containers"], *pod.get("initContainers", ())]
    }
    assert images
    assert [image for image in images if "@sha256:" not in image or "." not in image.split("/")[0]] == []
    (code,) = (pod for pod in pods(overlay(name)) if pod.owner.endswith("/dagster-code"))
    (container,) = code.spec["containers"]
    environment = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert environment["DAGSTER_CURRENT_IMAGE"] == container["image"]


def test_the_operators_are_set_up_for_gangs() -> None:
    values = {path.stem: yaml.safe_load(path.read_text()) for path in (MANIFESTS / "operators").glob("*.yaml")}
    scheduler = yaml.safe_load(values["volcano"]["custom"]["scheduler_config_override"])
    assert "enqueue" not in scheduler["actions"]
    assert "gang" in {plugin["name"] for tier in scheduler["tiers"] for plugin in tier["plugins"]}
    kueue = yaml.safe_load(values["kueue"]["managerConfig"]["controllerManagerConfigYaml"])
    minutes = int(kueue["waitForPodsReady"]["timeout"].removesuffix("m"))
    assert 2 * minutes * 60 <= Kubernetes.model_fields["start_timeout_s"].default, "no second try before a launch ends"
    assert kueue["manageJobsWithoutQueueName"] is False
    assert set(kueue["integrations"]["labelKeysToCopy"]) <= labels(gang_of(EKS)).keys()
    assert set(kueue["integrations"]["frameworks"]) >= {"jobset.x-k8s.io/jobset", "batch/job", "ray.io/rayjob"}
    assert values["karpenter"]["settings"]["interruptionQueue"]


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
