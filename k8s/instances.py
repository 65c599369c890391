"""The machines that a gang can be placed on: what a pod may ask of one, and how the cluster selects it.

Allocatable figures are derived, and meant to err on the low side: what is asked for beyond them never starts. AWS: the
memory less 7.5% for the hypervisor and the kernel (Karpenter's VM_MEMORY_OVERHEAD_PERCENT) and less kube-reserved and
the eviction threshold (EKS: 255 + 11 for each pod + 100 MiB), which gives what a p5en.48xlarge was seen to have to the
MiB. Google Cloud: GB of its tables read as 10^9 bytes, less GKE's documented share of memory. CPU on both: less 6% of
the first core, 1% of the second, 0.5% of the next two and 0.25% of the others.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

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


def _cpu_m(cores: int) -> int:
    return cores * 1000 - 60 - 10 - 10 - (cores - 4) * 5 // 2


class _Gpus(NamedTuple):
    model: str
    devices: int
    memory_gb: int
    """Of each."""


def _aws(name: str, gpus: _Gpus, cores: int, memory_gib: int, efa: int, max_pods: int = 737) -> Instance:
    """`max_pods`: of the VPC CNI, for which the kubelet keeps memory; 737 is the most that any type has."""
    memory = memory_gib * 1024 * 925 // 1000 - (255 + 11 * max_pods) - 100
    return _with_gpus(name, "aws", gpus, _cpu_m(cores), memory, efa)


def _gcp(name: str, gpus: _Gpus, cores: int, memory_gb: int) -> Instance:
    memory = memory_gb * 10**9 // 2**20
    # GKE keeps 25% of the first 4 GiB, 20% of the next 4, 10% of the next 8, 6% up to 128, 2% above, and 100 MiB.
    kept = 1024 + 819 + 820 + 6882 + (memory - 128 * 1024) // 50 + 100
    return _with_gpus(name, "gcp", gpus, _cpu_m(cores), memory - kept)


def _with_gpus(
    name: str, cloud: Literal["aws", "gcp"], gpus: _Gpus, cpu_m: int, memory_mib: int, efa: int = 0
) -> Instance:
    return Instance(
        name=name, cloud=cloud, gpu=gpus.model, gpus=gpus.devices, gpu_memory_gb=gpus.memory_gb, cpu_m=cpu_m,
        memory_mib=memory_mib, efa=efa,
    )  # fmt: skip


INSTANCES = {
    machine.name: machine
    for machine in (
        _aws("p5en.48xlarge", _Gpus("H200", 8, 141), cores=192, memory_gib=2048, efa=16, max_pods=198),
        _aws("p5e.48xlarge", _Gpus("H200", 8, 141), cores=192, memory_gib=2048, efa=32),
        _aws("p5.48xlarge", _Gpus("H100", 8, 80), cores=192, memory_gib=2048, efa=32),
        _aws("p4de.24xlarge", _Gpus("A100", 8, 80), cores=96, memory_gib=1152, efa=4),
        _aws("p4d.24xlarge", _Gpus("A100", 8, 40), cores=96, memory_gib=1152, efa=4),
        # Their one adapter has no GPUDirect RDMA: gangs of several nodes work, slowly.
        _aws("g6e.12xlarge", _Gpus("L40S", 4, 48), cores=48, memory_gib=384, efa=1),
        _aws("g5.12xlarge", _Gpus("A10G", 4, 24), cores=48, memory_gib=192, efa=1),
        _gcp("a4-highgpu-8g", _Gpus("B200", 8, 180), cores=224, memory_gb=3968),
        _gcp("a3-ultragpu-8g", _Gpus("H200", 8, 141), cores=224, memory_gb=2952),
        _gcp("a3-megagpu-8g", _Gpus("H100", 8, 80), cores=208, memory_gb=1872),
        # Any node that has this much to spare, among other people's pods: for small models without devices.
        Instance(name="cpu", cloud="any", gpu="", gpus=0, gpu_memory_gb=0, cpu_m=2000, memory_mib=4096),
    )
}
