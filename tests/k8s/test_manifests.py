"""Every overlay builds, is right by schema, and holds together."""

from pathlib import Path

import pytest
import yaml

from k8s.lint import lint_gang
from k8s.pod import labels
from k8s.render import render
from pipeline.recipe import Kubernetes

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
from .schemas import problems, unchecked

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
