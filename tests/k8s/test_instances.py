"""What a pod may ask of a node."""

import pytest

from k8s.instances import INSTANCES, instance
from k8s.render.placement import ACCELERATORS

NOMINAL_GIB = {
    "p5en.48xlarge": 2048, "p5e.48xlarge": 2048, "p5.48xlarge": 2048, "p4de.24xlarge": 1152, "p4d.24xlarge": 1152,
    "g6e.12xlarge": 384, "g5.12xlarge": 192, "a4-highgpu-8g": 3968, "a3-ultragpu-8g": 2952, "a3-megagpu-8g": 1872,
}  # fmt: skip


def test_p5en_has_what_a_real_one_had():
    machine = instance("p5en.48xlarge")
    assert (machine.cpu_m, machine.memory_mib, machine.gpus, machine.efa) == (191_450, 1_937_332, 8, 16)


@pytest.mark.parametrize("name", NOMINAL_GIB)
def test_allocatable_is_less_than_the_vendor_sells(name):
    share = instance(name).memory_mib / (NOMINAL_GIB[name] * 1024)
    assert 0.85 < share < 0.93


def test_every_type_is_listed_under_its_own_name():
    assert {machine.name for machine in INSTANCES.values()} == set(INSTANCES) == {*NOMINAL_GIB, "cpu"}


def test_google_names_every_device():
    assert all(machine.gpu in ACCELERATORS for machine in INSTANCES.values() if machine.cloud == "gcp")


@pytest.mark.parametrize("name", ["p5en.48xlarge ", "P5EN.48XLARGE", "", "p6-b200.48xlarge\n---"])
def test_unknown_type_is_refused_with_the_known_ones(name):
    with pytest.raises(ValueError, match=r"is not known\. Set compute.*p4d\.24xlarge"):
        instance(name)
