"""Where and when the work of a deployment runs, and what that costs: no part of what an iteration is."""

from typing import Annotated, ClassVar, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from pipeline.recipe.section import Line, Section

INT32 = 2**31 - 1
"""Kubernetes keeps counts and seconds in 32 bits."""
_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_NAME = rf"^{_LABEL}(?:\.{_LABEL})*$"

# Names as the API server takes them; a queue is also the value of a label.
DnsLabel = Annotated[str, Field(pattern=f"^{_LABEL}$", max_length=63)]
DnsName = Annotated[str, Field(pattern=_NAME, max_length=253)]
QueueName = Annotated[str, Field(pattern=_NAME, max_length=63)]
ImageName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$", max_length=4096)]
InstanceType = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=63)]
MountPath = Annotated[str, Field(pattern=r"^(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$", max_length=255)]
Variable = Annotated[str, Field(pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$", max_length=253)]
Cron = Annotated[str, Field(pattern=r"^[0-9A-Za-z*,/-]+( [0-9A-Za-z*,/-]+){4}$", max_length=100)]
"""Five fields: minute, hour, day of the month, month, day of the week."""


class Accelerator(Section):
    """The device of a training process, for the estimate of hours and cost and for MFU. The default is an H200."""

    name: Line = "H200"
    """The device's name, for reports."""
    peak_tflops: PositiveFloat = Field(default=989.0, le=1e6)
    """Dense bf16, of one device (NVIDIA's data sheet)."""
    utilisation: float = Field(default=0.3, gt=0, le=1)
    """Of the peak while training; generation counts at a tenth of it, for it waits on memory."""
    usd_per_hour: float = Field(default=5.0, ge=0, le=1e6)
    """Of one device, at the capacity that the recipe asks for first: put your own contract's price."""
    usd_per_hour_high: float = Field(default=0.0, ge=0, le=1e6)
    """Where that price varies, as of spot nodes: its highest. 0: it does not."""


class Expected(Section):
    """What is known of a training before it, for the estimate of hours and dollars: `pt k8s estimate`, the check before
    a launch."""

    step_s: tuple[PositiveFloat, PositiveFloat] | None = None
    """Lowest and highest seconds of a step, as measured on these devices: a batch of generation, or of pairs. null:
    estimated from the floating-point operations, a factor of two either way."""
    save_s: float = Field(default=8.0, ge=0, le=1e6)
    """Seconds of a checkpoint, with the validation before it (seed 000)."""
    start_s: tuple[NonNegativeFloat, NonNegativeFloat] = (60.0, 60.0)
    """Lowest and highest seconds from the start of the pods to the first step."""
    parameters_b: PositiveFloat | None = Field(default=None, le=1e6)
    """Billions of weights, where the base model's folder is not here to be read."""
    prompt_tokens: PositiveInt = 400
    """Mean length of a prompt."""
    completion_tokens: PositiveInt = 400
    """Mean length of a completion, or of one side of a pair."""
    iterations_per_year: PositiveInt = 24
    """For the year's cost (seed 002)."""


class Kubernetes(Section):
    """A gang of pods for each training. The data root is on a volume that Dagster's steps and the pods mount alike."""

    backend: Literal["jobset", "volcano", "rayjob"] = "jobset"
    """jobset is admitted by Kueue; rayjob (KubeRay) is for NeMo RL."""
    namespace: DnsLabel = "preference-tuning"
    """Namespace of the gang."""
    image: ImageName
    """Of the gang, pinned: name@sha256:digest. Built from k8s/images/nemo-rl.Dockerfile for engine nemo_rl, else from
    trainer.Dockerfile; by the names nemo-rl and trainer the lint tells one from the other."""
    instance_type: InstanceType = "p5en.48xlarge"
    """Of every node of the gang; one of k8s/gang.py. "cpu": any node, for small models without devices."""
    capacity: Literal["spot", "spot_first", "on_demand"] = "spot"
    """spot_first falls back to on-demand nodes by the weights of the node pools."""
    queue: QueueName = "training"
    """Kueue's LocalQueue, or Volcano's Queue."""
    service_account: DnsName = "trainer"
    """ServiceAccount of the trainer's pods."""
    claim: DnsName = "checkpoints"
    """PersistentVolumeClaim, ReadWriteMany, that holds the data root."""
    mount: MountPath = "/checkpoints"
    """Where the claim is mounted; the data root lies below it."""
    shm_gb: PositiveInt = Field(default=64, le=65_536)
    """/dev/shm in GiB, which counts in the pod's memory: what NCCL and data loaders share."""
    max_restarts: NonNegativeInt = Field(default=5, le=INT32)
    """Of the gang after crashes. Pre-emptions are not counted, but a node that is lost without notice may be: its peers
    end with an error of their own before anybody else knows."""
    start_timeout_s: PositiveFloat = Field(default=3600.0, le=1e9)
    """For quota, nodes and images to come, until the launch gives up."""
    poll_s: ClassVar[float] = 10.0
    """Between two looks at a running gang."""
    ttl_s: ClassVar[int] = 86_400
    """How long a finished gang stays in the cluster to be looked at."""
    on_demand_usd_per_hour: float = Field(default=0.0, ge=0, le=1e6)
    """Of one device of the fallback; 0: that of the accelerator."""
    storage_gb: float = Field(default=0.0, ge=0, le=1e12)
    """Of the volume, for the estimate of an iteration's cost."""
    storage_hours: float = Field(default=0.0, ge=0, le=1e6)
    """How long an iteration pays for the volume, if longer than its training runs."""
    bucket_gb: float = Field(default=0.0, ge=0, le=1e12)
    """What an iteration leaves in an object store for a month: checkpoints, tables."""
    storage_usd_per_gb_month: float = Field(default=0.14, ge=0, le=1e6)
    """Price of that volume; the default is that of FSx for Lustre (seed 002)."""
    env: dict[Variable, str] = Field(default={})
    """More environment of the trainer; no secrets."""
    secret: DnsName | None = None
    """Secret of that namespace whose JUDGE_API_KEY the trainer gets, where a judge scores completions of a training;
    null: no key."""


class EvaluationPod(Section):
    """A pod for each evaluation, for models that the Dagster step's machine has no room for. What it does not name
    (namespace, queue, capacity, service account, volume) is that of `compute.kubernetes`, and the backend, where that
    is no rayjob (else jobset)."""

    image: ImageName | None = None
    """Pinned: name@sha256:digest. null: the trainer's; the one of a rayjob has no evaluation in it."""
    instance_type: InstanceType | None = None
    """Of its node; one of k8s/gang.py. null: that of the training."""
    devices: PositiveInt = Field(default=1, le=1024)
    """GPUs of the pod, at least as many as `evaluation.serving.tensor_parallel`."""
    timeout_s: PositiveFloat = Field(default=6 * 3600.0, le=1e9)
    """Longest duration of one launch; what was answered by then is kept."""
    secret: DnsName | None = None
    """Secret of that namespace whose keys JUDGE_API_KEY and SERVING_API_KEY the pod gets; null: no keys."""
    env: dict[Variable, str] = Field(default={})
    """More environment, such as VLLM_PYTHON as the image has it; no secrets."""


class Compute(Section):
    """Where the work of a stage runs."""

    data: Literal["local", "ray"] = "local"
    """Traces and labels: processes of this machine, or the Ray cluster that RAY_ADDRESS names."""
    workers: PositiveInt = Field(default=2, le=100_000)
    """Source files read, or files of rows labelled, at once: processes (local) or tasks (ray)."""
    memory_mb: PositiveInt = Field(default=256, le=INT32)
    """What one such process may take to compare a day's rows; beyond it, it spills. Rows on their way through the
    gates come in blocks of 16 MB, whatever the size of the input."""
    nodes: PositiveInt = Field(default=1, le=1000)
    """Machines of a training; the names of pods have room for three digits."""
    processes: PositiveInt = Field(default=1, le=1024)
    """Training processes on each node: one for each GPU; on CPU, DDP over gloo."""
    accelerator: Accelerator = Accelerator()
    """The device that a training process has."""
    expected: Expected = Expected()
    """What is known of a training before it, for the estimate of hours and dollars."""
    kubernetes: Kubernetes | None = None
    """A gang of pods for each training; null: it runs on the machine of its Dagster step."""
    evaluation: EvaluationPod | None = None
    """A pod of that cluster for each evaluation; null: it runs on the machine of its Dagster step."""
    budget_usd: PositiveFloat | None = Field(default=None, le=1e12)
    """Of one iteration's training: an estimate above it refuses the launch. null: no limit."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.evaluation is not None and self.kubernetes is None:
            raise ValueError("compute.evaluation needs a cluster: add compute.kubernetes, or leave it out.")
        backend = self.kubernetes.backend if self.kubernetes is not None else ""
        if self.evaluation is not None and backend == "rayjob" and self.evaluation.image is None:
            raise ValueError("the image of a rayjob has no evaluation in it: set compute.evaluation.image.")
        return self

    @property
    def devices(self) -> int:
        """Of a training, over all nodes."""
        return self.nodes * self.processes


class Retention(Section):
    """What the schedule `weekly` deletes. Records, evidence, tables and the audit log stay."""

    iterations: PositiveInt = 10
    """Of how many iterations weights, checkpoints, answers and MLflow's copies stay: the last ones begun, and all that
    were promoted, are in a rollout or have an alias in MLflow. Without a router, all that are registered, too."""


class Automation(Section):
    """When the loop starts by itself. Schedules and sensors are stopped until somebody starts them in Dagster."""

    timezone: ZoneInfo = ZoneInfo("UTC")
    """Of the crons below, by its IANA name, such as `Europe/Berlin`."""
    iteration_cron: Cron = "0 3 * * *"
    """Schedule `nightly`: a whole iteration."""
    labelling_cron: Cron = "0 * * * *"
    """Schedule `hourly_labels`: traces and reward labels alone, which the sensor `new_labels` counts."""
    upkeep_cron: ClassVar[str] = "0 5 * * 0"
    """Schedule `weekly`: retention and the table's upkeep."""
    min_new_labels: PositiveInt = 1000
    """Sensor `new_labels`: distinct consented labels that no ended iteration had, before it asks for an iteration."""
    min_drift_labels: ClassVar[int] = 100
    """Sensor `feedback_drift`: answers that users rated, or that the judge scored, of the iteration before and since,
    before it tests whether the champion's became worse by more than `rollout.max_quality_drop`."""
    quiet_s: NonNegativeFloat = 3600.0
    """The sensors `new_labels`, `feedback_drift` and `champion_changed` ask for no iteration within so long of the
    start of another: what triggers twice in an hour makes one iteration."""
    champion_max_age_days: PositiveFloat | None = 30.0
    """Dagster marks the asset `champion` as overdue when no other model was promoted for so long; null: never."""
