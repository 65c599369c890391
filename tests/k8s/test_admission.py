"""What the manifests promise a gang of the overlay's recipe: a flavour, nodes, the volume, operators set up for it."""

import copy

import pytest
import yaml

from k8s.lint import lint_objects
from k8s.render import render
from k8s.render.pod import USER, labels
from pipeline.recipe import Kubernetes

from .admission import flavors_for, gang_of, pod_sets, pools_for, quotas, recipe_of, tolerated
from .manifests import MANIFESTS, of_kind, overlay, pods, training_pools

EKS, A100, GKE = "eks-spot-h200", "eks-a100", "gke"
every_overlay = pytest.mark.parametrize("name", [EKS, A100, GKE])
CAPACITIES = {
    "spot": {"training-spot"},
    "on_demand": {"training-on-demand"},
    "spot_first": {"training-spot", "training-on-demand"},
}


@every_overlay
@pytest.mark.parametrize("backend", ["jobset", "rayjob"])
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_gang_is_admitted_and_its_nodes_can_come(name: str, backend: str, capacity: str) -> None:
    """And no second one beside it: nodes are promised to one gang at a time."""
    gang, objects = gang_of(name, backend=backend, capacity=capacity), overlay(name)
    first, *_ = flavors_for(objects, gang)
    assert first["metadata"]["name"] == "training"
    gpus = quotas(objects)["training"]["nvidia.com/gpu"]
    assert gang.nodes * gang.processes <= gpus < 2 * gang.nodes * gang.processes
    for pod, _ in pod_sets(gang) if name != GKE else ():
        fitting = pools_for(objects, pod, first["spec"]["nodeLabels"])
        assert {pool["metadata"]["name"] for pool in fitting} == CAPACITIES[capacity]
        assert all(gpus <= pool["spec"]["limits"]["nvidia.com/gpu"] for pool in fitting)


@every_overlay
def test_a_gang_without_devices_goes_to_any_node(name: str) -> None:
    gang = gang_of(name, backend="jobset", instance_type="cpu", shm_gb=1)
    assert [flavor["metadata"]["name"] for flavor in flavors_for(overlay(name), gang)] == ["any-node"]


def test_a_gang_beyond_the_quota_is_not_admitted() -> None:
    assert flavors_for(overlay(A100), gang_of(EKS, backend="jobset")) == []


def test_a_flavour_without_the_capacity_takes_every_gang() -> None:
    """A gang on spot nodes goes past its own flavour, of no quota, to one that does not say the capacity."""
    objects, gang = copy.deepcopy(list(overlay(EKS))), gang_of(EKS, backend="jobset", capacity="spot")
    (wide,) = (o for o in of_kind(objects, "ResourceFlavor") if o["metadata"]["name"] == "training")
    narrow = copy.deepcopy(wide)
    narrow["metadata"]["name"] = "spot"
    narrow["spec"]["nodeLabels"]["karpenter.sh/capacity-type"] = "spot"
    objects.append(narrow)
    (queue,) = of_kind(objects, "ClusterQueue")
    offers = queue["spec"]["resourceGroups"][0]["flavors"]
    offers.insert(0, copy.deepcopy(next(offer for offer in offers if offer["name"] == "training")) | {"name": "spot"})
    assert [flavor["metadata"]["name"] for flavor in flavors_for(objects, gang)] == ["spot", "training"]
    for resource in offers[0]["resources"]:
        resource["nominalQuota"] = "0"
    assert [flavor["metadata"]["name"] for flavor in flavors_for(objects, gang)] == ["training"]
    ours = {f.rule: f.problem for f in lint_objects([*render(gang), *objects])}
    assert ours["flavour-takes-others"] == "training takes what selects spot: no karpenter.sh/capacity-type"


@pytest.mark.parametrize("name", [EKS, A100])
def test_what_serves_finds_a_pool_that_is_not_for_training(name: str) -> None:
    asking = [pod for pod in pods(overlay(name)) if "nvidia.com/gpu" in str(pod.spec)]
    assert {pod.owner.split("/")[1] for pod in asking} == {"slot-a", "slot-b", "judge"}
    for pod in asking:
        assert [pool["metadata"]["name"] for pool in pools_for(overlay(name), pod.spec, {})] == ["serving"], pod.owner


@pytest.mark.parametrize("name", [EKS, A100])
def test_what_needs_no_gpu_finds_nodes_of_its_own(name: str) -> None:
    asking = [pod for pod in pods(overlay(name)) if "nvidia.com/gpu" not in str(pod.spec)]
    assert {"dagster-code", "dagster-daemon", "mlflow"} <= {pod.owner.split("/")[1] for pod in asking}
    ((cpu, _),) = pod_sets(gang_of(name, backend="jobset", instance_type="cpu", shm_gb=1))
    for spec in [{"containers": []}, cpu, *(pod.spec for pod in asking)]:
        assert [pool["metadata"]["name"] for pool in pools_for(overlay(name), spec, {})] == ["platform"]


@pytest.mark.parametrize("name", [EKS, A100])
def test_the_device_plugin_runs_where_the_gpus_are(name: str) -> None:
    """Its chart asks for this label, or for one that Node Feature Discovery would set."""
    for pool in of_kind(overlay(name), "NodePool"):
        labelled = pool["spec"]["template"]["metadata"]["labels"].get("nvidia.com/gpu.present") == "true"
        assert labelled == ("nvidia.com/gpu" in pool["spec"]["limits"]), pool["metadata"]["name"]


@every_overlay
def test_runs_and_trainers_see_the_same_files_as_the_same_user(name: str) -> None:
    (instance,) = (obj for obj in of_kind(overlay(name), "ConfigMap") if "workspace.yaml" in obj["data"])
    run = yaml.safe_load(instance["data"]["dagster.yaml"])["run_launcher"]["config"]
    settings = gang_of(name).settings
    assert recipe_of(name).data_root.startswith(f"{settings.mount}/")
    assert run["run_k8s_config"]["pod_spec_config"]["security_context"]["run_as_user"] == USER
    (claimed,) = (volume for volume in run["volumes"] if "persistent_volume_claim" in volume)
    assert claimed["persistent_volume_claim"]["claim_name"] == settings.claim
    paths = {mount["name"]: mount["mount_path"] for mount in run["volume_mounts"]}
    assert paths[claimed["name"]] == settings.mount


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
    for pool in training_pools(overlay(EKS)):
        for taint in pool["spec"]["template"]["spec"]["taints"]:
            assert tolerated(taint, values["device-plugins"]), taint
