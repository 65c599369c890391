"""Which nodes a gang asks for."""

import json

import pytest

from k8s.render import render

from .golden import gang
from .kubelet import pods

EKS, GKE = "karpenter.sh/capacity-type", "cloud.google.com/gke-spot"


def _spec(**settings):
    return pods(render(gang(**settings)))[0].template["spec"]


@pytest.mark.parametrize(
    ("machine", "capacity", "selected"),
    [
        ("p5en.48xlarge", "spot", {EKS: "spot"}),
        ("p5en.48xlarge", "on_demand", {EKS: "on-demand"}),
        ("p5en.48xlarge", "spot_first", {}),
        ("a4-highgpu-8g", "spot", {GKE: "true", "cloud.google.com/gke-accelerator": "nvidia-b200"}),
        ("a4-highgpu-8g", "on_demand", {"cloud.google.com/gke-accelerator": "nvidia-b200"}),
        ("a4-highgpu-8g", "spot_first", {"cloud.google.com/gke-accelerator": "nvidia-b200"}),
    ],
)
def test_type_and_capacity_are_selected(machine, capacity, selected):
    spec = _spec(instance_type=machine, capacity=capacity)
    assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": machine} | selected


@pytest.mark.parametrize("machine", ["p5en.48xlarge", "a4-highgpu-8g"])
@pytest.mark.parametrize("capacity", ["spot", "spot_first", "on_demand"])
def test_named_taints_are_tolerated_and_no_others(machine, capacity):
    keys = [toleration["key"] for toleration in _spec(instance_type=machine, capacity=capacity)["tolerations"]]
    spot = [GKE] if machine.startswith("a4") and capacity != "on_demand" else []
    assert keys == ["nvidia.com/gpu", "preference-tuning/training", *spot]


def test_on_demand_on_gke_keeps_away_from_spot_nodes():
    wanted = _spec(instance_type="a4-highgpu-8g", capacity="on_demand")["affinity"]["nodeAffinity"]
    (term,) = wanted["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": GKE, "operator": "DoesNotExist"}]}


@pytest.mark.parametrize("backend", ["jobset", "volcano", "rayjob"])
def test_a_node_holds_one_pod_of_the_gang(backend):
    objects = render(gang(backend=backend))
    for result in pods(objects):
        (term,) = result.template["spec"]["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"]["matchLabels"].items() <= result.template["metadata"]["labels"].items()


def test_any_node_does_for_small_models():
    assert not _spec(instance_type="cpu", processes=1).keys() & {"nodeSelector", "tolerations", "affinity"}


@pytest.mark.parametrize(
    ("machine", "nodes", "joined"), [("a4-highgpu-8g", 2, 10), ("a4-highgpu-8g", 1, 0), ("p5en.48xlarge", 2, 0)]
)
def test_gke_gangs_join_the_networks_between_gpus(machine, nodes, joined):
    annotations = pods(render(gang(nodes=nodes, instance_type=machine)))[0].template["metadata"].get("annotations", {})
    interfaces = json.loads(annotations.get("networking.gke.io/interfaces", "[]"))
    assert len(interfaces) == joined
    assert len({interface["network"] for interface in interfaces}) == joined


def test_the_submitter_fits_beside_the_head():
    spec = render(gang(backend="rayjob"))[0]["spec"]
    submitter = spec["submitterPodTemplate"]["spec"]
    head = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert submitter["nodeSelector"] == head["nodeSelector"]
    assert "affinity" not in submitter
    (term,) = head["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchExpressions"] == [
        {"key": "ray.io/node-type", "operator": "In", "values": ["head", "worker"]}
    ]
    left = gang().instance.cpu_m - int(head["containers"][0]["resources"]["requests"]["cpu"]) * 1000
    assert left >= 500
