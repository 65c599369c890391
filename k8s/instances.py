"""The machines that a gang can be placed on. Allocatable figures are derived and err on the low side. AWS: memory less
7.5% (hypervisor, kernel) and kube-reserved; Google: less GKE's documented share."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

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


class _SoldMachine(NamedTuple):
    """As its vendor sells it: `devices` of `gb` each, `cores`, and memory in the vendor's own unit."""

    name: str
    gpu: str
    devices: int
    gb: int
    cores: int
    memory: int
    efa: int = 0
    max_pods: int = 737
    """Of the VPC CNI, for which the kubelet keeps memory; 737 is the most that any type has."""

    def sized(self, cloud: Literal["aws", "gcp"], memory_mib: int) -> Instance:
        return Instance(
            name=self.name, cloud=cloud, gpu=self.gpu, gpus=self.devices, gpu_memory_gb=self.gb,
            cpu_m=self.cores * 1000 - 60 - 10 - 10 - (self.cores - 4) * 5 // 2, memory_mib=memory_mib, efa=self.efa,
        )  # fmt: skip


def _aws(*sold: Any, **more: int) -> Instance:
    """Memory in GiB."""
    machine = _SoldMachine(*sold, **more)
    memory = machine.memory * 1024 * 925 // 1000 - (255 + 11 * machine.max_pods) - 100
    return machine.sized("aws", memory)


def _gcp(*sold: Any) -> Instance:
    """Memory in GB."""
    machine = _SoldMachine(*sold)
    memory = machine.memory * 10**9 // 2**20
    # GKE keeps 25% of the first 4 GiB, 20% of the next 4, 10% of the next 8, 6% up to 128, 2% above, and 100 MiB.
    return machine.sized("gcp", memory - (1024 + 819 + 820 + 6882 + (memory - 128 * 1024) // 50 + 100))


INSTANCES = {
    machine.name: machine
    for machine in (
        _aws("p5en.48xlarge", "H200", 8, 141, 192, 2048, efa=16, max_pods=198),
        _aws("p5e.48xlarge", "H200", 8, 141, 192, 2048, efa=32),
        _aws("p5.48xlarge", "H100", 8, 80, 192, 2048, efa=32),
        _aws("p4de.24xlarge", "A100", 8, 80, 96, 1152, efa=4),
        _aws("p4d.24xlarge", "A100", 8, 40, 96, 1152, efa=4),
        # Their one adapter has no GPUDirect RDMA: gangs of several nodes work, slowly.
        _aws("g6e.12xlarge", "L40S", 4, 48, 48, 384, efa=1),
        _aws("g5.12xlarge", "A10G", 4, 24, 48, 192, efa=1),
        _gcp("a4-highgpu-8g", "B200", 8, 180, 224, 3968),
        _gcp("a3-ultragpu-8g", "H200", 8, 141, 224, 2952),
        _gcp("a3-megagpu-8g", "H100", 8, 80, 208, 1872),
        # Any node that has this much to spare, among other people's pods: for small models without devices.
        Instance(name="cpu", cloud="any", gpu="", gpus=0, gpu_memory_gb=0, cpu_m=2000, memory_mib=4096),
    )
}
