"""Where the work of a deployment runs, and what that costs: no part of what an iteration is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from pipeline.recipe.section import Section


class Accelerator(Section):
    """The device of a training process, for the estimate of hours and cost and for MFU. The default is an H200."""

    name: str = "H200"
    peak_tflops: PositiveFloat = 989.0
    """Dense bf16, of one device (NVIDIA's data sheet)."""
    utilisation: float = Field(default=0.3, gt=0, le=1)
    """Of the peak while training; generation counts at a tenth of it, for it waits on memory."""
    usd_per_hour: float = Field(default=5.0, ge=0)
    """Of one device, at the capacity that the recipe asks for first: put your own contract's price."""


class Kubernetes(Section):
    """A gang of pods for each training. The data root is on a volume that Dagster's steps and the pods mount alike."""

    backend: Literal["jobset", "volcano", "indexed_job", "rayjob"] = "jobset"
    """jobset is admitted by Kueue; indexed_job needs no operator; rayjob (KubeRay) is for NeMo RL."""
    namespace: str = "preference-tuning"
    image: str
    """Of the trainer (k8s/images), pinned: name@sha256:digest."""
    instance_type: str = "p5en.48xlarge"
    """Of every node of the gang; one of k8s/instances.py. "cpu": any node, for small models without devices."""
    capacity: Literal["spot", "spot_first", "on_demand"] = "spot"
    """spot_first falls back to on-demand nodes by the weights of the node pools."""
    queue: str = "training"
    """Kueue's LocalQueue, or Volcano's Queue."""
    service_account: str = "trainer"
    claim: str = "checkpoints"
    """PersistentVolumeClaim, ReadWriteMany, that holds the data root."""
    mount: str = "/checkpoints"
    """Where the claim is mounted; the data root lies below it."""
    shm_gb: PositiveInt = 64
    """/dev/shm in GiB, which counts in the pod's memory: what NCCL and data loaders share."""
    max_restarts: NonNegativeInt = 3
    """Of the gang after crashes. Pre-emptions are not counted."""
    start_timeout_s: PositiveFloat = 3600.0
    """For quota, nodes and images to come, until the launch gives up."""
    poll_s: PositiveFloat = 10.0
    """Between two looks at a running gang."""
    ttl_s: NonNegativeInt = 86_400
    """How long a finished gang stays in the cluster to be looked at."""
    on_demand_usd_per_hour: float = Field(default=0.0, ge=0)
    """Of one device of the fallback; 0: that of the accelerator."""
    storage_gb: float = Field(default=0.0, ge=0)
    """Of the volume, for the estimate of an iteration's cost."""
    storage_usd_per_gb_month: float = Field(default=0.14, ge=0)
    """Seed 002, of FSx for Lustre."""
    env: dict[str, str] = Field(default={})
    """More environment of the trainer; no secrets."""


class Compute(Section):
    """Where the work of a stage runs."""

    data: Literal["local", "ray"] = "local"
    """Traces and labels: processes of this machine, or the Ray cluster that RAY_ADDRESS names."""
    workers: PositiveInt = 2
    """Source files read, or files of rows labelled, at once: processes (local) or tasks (ray)."""
    memory_mb: PositiveInt = 256
    """What one such process may take to compare a day's rows; beyond it, it spills. Rows on their way through the
    gates come in blocks of 16 MB, whatever the size of the input."""
    nodes: PositiveInt = 1
    """Machines of a training."""
    processes: PositiveInt = 1
    """Training processes on each node: one for each GPU; on CPU, DDP over gloo."""
    accelerator: Accelerator = Accelerator()
    kubernetes: Kubernetes | None = None
    """None: a training runs on the machine of its Dagster step."""
    budget_usd: PositiveFloat | None = None
    """Of one iteration's training: an estimate above it refuses the launch. None: no limit."""

    @property
    def devices(self) -> int:
        """Of a training, over all nodes."""
        return self.nodes * self.processes
