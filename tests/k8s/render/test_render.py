"""Rendered gangs: as files that a person can read, which nodes they ask for, who acts on which end of a pod."""

import pytest
import yaml

from k8s.render import render

from .golden import CASES, FOLDER, gang, text
from .kubelet import pods


@pytest.mark.parametrize("name", CASES)
def test_file_is_what_is_rendered(name):
    kept = (FOLDER / f"{name}.yaml").read_text()
    assert list(yaml.safe_load_all(kept)) == render(CASES[name])
    assert kept == text(CASES[name]), "stale: python -m tests.k8s.render.golden, and read the diff"


@pytest.mark.shared
@pytest.mark.parametrize("name", CASES)
def test_the_api_server_takes_it(name, shared_data):
    from ..schemas import problems

    for obj in render(CASES[name]):
        assert problems(obj) == []
        obj["spec"]["foo"] = 1
        assert problems(obj) != []


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
