"""The machines that a gang can be placed on. Allocatable figures are derived and err on the low side. AWS: memory less
7.5% (hypervisor, kernel) and kube-reserved; Google: less GKE's documented share."""

from typing import Literal

from pipeline.core.storage import Record


class Instance(Record):
    """One instance type. `cpu_m` (millicores) and `memory_mib` are allocatable: what is left beside the system."""

    name: str
    cloud: Literal["aws", "gcp", "any"]
    gpu: str
    """Model of the device, as people call it; empty without."""
    gpus: int
    gpu_memory_gb: int
    cpu_m: int
    memory_mib: int
    efa: int = 0
    """Elastic Fabric Adapters, resource vpc.amazonaws.com/efa."""


def instance(name: str) -> Instance:
    """Raises ValueError naming the known ones."""
    if name not in INSTANCES:
        known = ", ".join(INSTANCES)
        raise ValueError(
            f"Instance type {name!r} is not known. Set compute.kubernetes.instance_type to one of {known}, or add it "
            "to k8s/instances.py with its GPUs and allocatable memory."
        )
    return INSTANCES[name]


_MACHINES = (
    # Name, cloud, device, devices, GB of each, allocatable millicores and MiB, EFA. AWS: 92.5% of the MiB less
    # 355 and 11 a pod; of Google: less 25, 20, 10, 6 and 2% of 4, 4, 8, 112 GiB and the rest.
    ("p5en.48xlarge", "aws", "H200", 8, 141, 191_450, 1_937_332, 16),
    ("p5e.48xlarge", "aws", "H200", 8, 141, 191_450, 1_931_403, 32),
    ("p5.48xlarge", "aws", "H100", 8, 80, 191_450, 1_931_403, 32),
    ("p4de.24xlarge", "aws", "A100", 8, 80, 95_690, 1_082_712, 4),
    ("p4d.24xlarge", "aws", "A100", 8, 40, 95_690, 1_082_712, 4),
    # Their one adapter has no GPUDirect RDMA: gangs of several nodes work, slowly.
    ("g6e.12xlarge", "aws", "L40S", 4, 48, 47_810, 355_262, 1),
    ("g5.12xlarge", "aws", "A10G", 4, 24, 47_810, 173_400, 1),
    ("a4-highgpu-8g", "gcp", "B200", 8, 180, 223_370, 3_701_472, 0),
    ("a3-ultragpu-8g", "gcp", "H200", 8, 141, 223_370, 2_751_918, 0),
    ("a3-megagpu-8g", "gcp", "H100", 8, 80, 207_410, 1_742_549, 0),
    # Any node that has this much to spare, among other people's pods: for small models without devices.
    ("cpu", "any", "", 0, 0, 2_000, 4_096, 0),
)  # fmt: skip
INSTANCES = {row[0]: Instance.model_validate(dict(zip(Instance.model_fields, row, strict=True))) for row in _MACHINES}
