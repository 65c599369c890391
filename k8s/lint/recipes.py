"""Rules on what a recipe asks of its gang, training or evaluation, before anything is rendered from it."""

from pathlib import PurePosixPath

from k8s.gang import NO_DIGEST, Gang
from k8s.lint.rules import GANG_RULES, Hits, rule

SAVE_S = 21.5
"""A checkpoint of an 8B model, all weights, to Lustre (seed 003's log): the longest that a seed reports."""
LONGEST_GRACE_S, SPOT_NOTICE_S = 110, 120
GKE_LONGEST_GRACE_S, GKE_NOTICE_S = 15, 30
RANKS = frozenset({"NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"})
IMAGES = {"trl": "trainer", "nemo_rl": "nemo-rl"}
"""Last part of the name of an engine's image, as k8s/README.md builds it."""


@rule(
    "Set it to at most the GPUs of the instance, or set compute.kubernetes.instance_type (of an evaluation "
    "compute.evaluation.instance_type) to a larger one.",
    table=GANG_RULES,
)
def gpus_over_instance(gang: Gang) -> Hits:
    """No node will ever hold such a pod: the cluster looks for one until the launch gives up."""
    if 0 < gang.instance.gpus < gang.processes:
        field = "compute.evaluation.devices" if gang.task == "evaluation" else "compute.processes"
        there = f"{gang.instance.name} has {gang.instance.gpus}"
        yield f"recipe {field}", f"{gang.nodes} nodes of {gang.processes} GPUs, but {there}"


@rule("Set data_root to a folder below compute.kubernetes.mount.", table=GANG_RULES)
def data_root_outside_mount(gang: Gang) -> Hits:
    """The pods do not find the plan (exit code 64), or write checkpoints to a disk that dies with its node."""
    mount = PurePosixPath(gang.settings.mount)
    if mount not in PurePosixPath(gang.plan_path).parents:
        yield "recipe data_root", f"the plan at {gang.plan_path}, the volume at {mount}"


@rule(
    f"Set training.grace_s between the time of a save and {LONGEST_GRACE_S} s (100); on GKE's spot nodes to at most "
    f"{GKE_LONGEST_GRACE_S} s.",
    table=GANG_RULES,
)
def grace_of_recipe(gang: Gang) -> Hits:
    """Too short, and each pre-emption loses what was trained since the last checkpoint; longer than a spot notice
    (120 s, less the drain; 30 s on GKE, half of it), and it is not given."""
    gke, spot = gang.instance.cloud == "gcp", gang.settings.capacity != "on_demand"
    longest, notice = (GKE_LONGEST_GRACE_S, GKE_NOTICE_S) if gke else (LONGEST_GRACE_S, SPOT_NOTICE_S)
    if gang.task == "evaluation":  # it has nothing to save, and no field for it
        return
    if gang.instance.gpus and gang.grace_s < SAVE_S and not (gke and spot):
        yield "recipe training.grace_s", f"{gang.grace_s} s, a save of an 8B model took {SAVE_S} s"
    if spot and gang.grace_s > longest:
        yield "recipe training.grace_s", f"{gang.grace_s} s of a spot notice of {notice} s"


@rule("Set compute.kubernetes.backend to rayjob for nemo_rl, and to jobset or volcano for trl.", table=GANG_RULES)
def engine_backend(gang: Gang) -> Hits:
    """NeMo RL places its processes on a Ray cluster and finds one node without it; torchrun has no rank in a RayJob."""
    backend = gang.settings.backend
    if (gang.engine == "nemo_rl") != (backend == "rayjob") and (gang.nodes > 1 or backend == "rayjob"):
        yield "recipe compute.kubernetes.backend", f"{backend} for engine {gang.engine} on {gang.nodes} nodes"


@rule(
    "Name the image built from k8s/images/nemo-rl.Dockerfile for engine nemo_rl, and from trainer.Dockerfile for trl "
    "and for evaluations (compute.evaluation.image).",
    table=GANG_RULES,
)
def image_of_engine(gang: Gang) -> Hits:
    """Each pod would end at its first import: the trainer's image has no NeMo RL, NeMo RL's has no TRL and no
    evaluation, and NVIDIA's own has no trainer in it. Images of other names are taken as they are."""
    repository = gang.settings.image.partition("@")[0].partition(":")[0]
    kind, needed = repository.rpartition("/")[2], IMAGES[gang.engine]
    if kind in set(IMAGES.values()) - {needed} or repository.startswith("nvcr.io/"):
        yield _image(gang), f"{gang.settings.image} for {gang.task} by {gang.engine}, which needs {needed}"


@rule("Build and push it (k8s/README.md, step 4), and put the digest that the registry answered.", table=GANG_RULES)
def image_not_built(gang: Gang) -> Hits:
    """No registry has an image of this digest: the pods wait for it until the launch gives up."""
    if gang.settings.image.endswith(NO_DIGEST):
        yield _image(gang), gang.settings.image


def _image(gang: Gang) -> str:
    return f"recipe compute.{'evaluation' if gang.task == 'evaluation' else 'kubernetes'}.image"


@rule("Take it out of compute.kubernetes.env.", table=GANG_RULES)
def reserved_env(gang: Gang) -> Hits:
    """Every pod would have the same rank, or a master that is none of the gang."""
    for name in sorted(RANKS & gang.settings.env.keys()):
        yield "recipe compute.kubernetes.env", f"{name}={gang.settings.env[name]}"
