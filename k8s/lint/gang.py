"""Rules on a gang against its recipe and its plan: what no single manifest can show."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import PurePosixPath

from k8s.gang import Gang, label_value
from k8s.lint.manifests import Manifests
from k8s.lint.pods import ITERATION, Workload
from k8s.lint.restarts import GKE_LONGEST_GRACE_S, LONGEST_GRACE_S, longest_grace
from k8s.lint.rules import Hits, gang_rule
from k8s.lint.tree import rows, text, whole

SAVE_S = 21.5
"""A checkpoint of an 8B model, all weights, to Lustre (seed 003's log): the longest that a seed reports."""
OURS = frozenset({"NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"})


def _workload(gang: Gang, seen: Manifests) -> Workload | None:
    return next((w for w in seen.workloads if text(w.object, "metadata", "name") == gang.name), None)


@gang_rule("error", fix="Make nodes x processes of the recipe what the manifests start.")
def gang_size(gang: Gang, seen: Manifests) -> Hits:
    """torch.distributed waits until world_size processes have met: with a pod less it waits for ever."""
    if (workload := _workload(gang, seen)) is None:
        return
    if workload.size != gang.nodes:
        yield workload.where, f"{workload.size} pods, the recipe has compute.nodes {gang.nodes}"
    for pods in workload.pods if gang.instance.gpus else []:
        if pods.gpus != gang.processes:
            yield f"{pods.where}.containers", f"{pods.gpus} GPUs, the recipe has compute.processes {gang.processes}"


@gang_rule("error", fix="Set compute.processes to the GPUs of the instance, or choose another instance_type.")
def gpus_over_instance(gang: Gang, seen: Manifests) -> Hits:
    """No node will ever hold such a pod: the cluster looks for one until the launch gives up."""
    if 0 < gang.instance.gpus < gang.processes:
        there = f"{gang.instance.name} has {gang.instance.gpus}"
        yield "recipe compute.processes", f"{gang.nodes} nodes of {gang.processes} GPUs, but {there}"


@gang_rule("warning", fix="Use all devices of the node, or a smaller instance type.")
def gpus_idle(gang: Gang, seen: Manifests) -> Hits:
    """A node is paid for whole, and the gang's pods do not share theirs."""
    if gang.processes < gang.instance.gpus:
        yield "recipe compute.processes", f"{gang.processes} of {gang.instance.gpus} GPUs of {gang.instance.name}"


@gang_rule("error", fix="Put data_root below compute.kubernetes.mount.")
def data_root_outside_mount(gang: Gang, seen: Manifests) -> Hits:
    """The pods do not find the plan (exit code 64), or write checkpoints to a disk that dies with its node."""
    mount = PurePosixPath(gang.settings.mount)
    if mount not in PurePosixPath(gang.plan_path).parents:
        yield "recipe data_root", f"the plan at {gang.plan_path}, the volume at {mount}"


@gang_rule(
    "error",
    fix=f"Set training.grace_s between the time of a save and {LONGEST_GRACE_S} s (100); on GKE's spot nodes to at "
    f"most {GKE_LONGEST_GRACE_S} s.",
)
def grace_of_recipe(gang: Gang, seen: Manifests) -> Hits:
    """Too short, and each pre-emption loses what was trained since the last checkpoint; longer than a spot notice
    (120 s, less the drain; 30 s on GKE, half of it), and it is not given. The trainer plans its last save by the
    recipe's number."""
    longest, notice = longest_grace(on_gke=gang.instance.cloud == "gcp")
    if gang.instance.gpus and gang.grace_s < SAVE_S and not _short_notice(gang):
        yield "recipe training.grace_s", f"{gang.grace_s} s, a save of an 8B model took {SAVE_S} s"
    if gang.settings.capacity != "on_demand" and gang.grace_s > longest:
        yield "recipe training.grace_s", f"{gang.grace_s} s of a spot notice of {notice} s"
    for pods in workload.pods if (workload := _workload(gang, seen)) else []:
        if (grace := whole(pods.spec, "terminationGracePeriodSeconds")) != gang.grace_s:
            yield f"{pods.where}.terminationGracePeriodSeconds", f"{grace}, the recipe has {gang.grace_s}"


@gang_rule("warning", fix="Save often (training.checkpoints.every_steps), or train on_demand.")
def save_over_grace(gang: Gang, seen: Manifests) -> Hits:
    """GKE gives a pod of a spot node about 15 s: the last save may not fit, and a pre-emption then loses what was
    trained since the one before."""
    if _short_notice(gang) and gang.grace_s < SAVE_S:
        yield "recipe training.grace_s", f"{gang.grace_s} s, a save of an 8B model took {SAVE_S} s"


def _short_notice(gang: Gang) -> bool:
    return gang.instance.cloud == "gcp" and gang.settings.capacity != "on_demand"


@gang_rule("error", fix="Let the deadline be the recipe's training.timeout_s, or more.")
def deadline_under_timeout(gang: Gang, seen: Manifests) -> Hits:
    """Kubernetes ends the training before its own time-out does, and it looks like a failure of the cluster."""
    if (workload := _workload(gang, seen)) is None:
        return
    for holder in [workload.spec, *(p.spec for p in workload.pods), *(job.spec for job in workload.jobs)]:
        if 0 < (deadline := whole(holder, "activeDeadlineSeconds")) < gang.timeout_s:
            yield (
                workload.where,
                f"activeDeadlineSeconds {deadline}, the recipe has training.timeout_s {gang.timeout_s}",
            )


@gang_rule("error", fix="Label objects and pods with the iteration, the plan's digest and the attempt.")
def gang_labels(gang: Gang, seen: Manifests) -> Hits:
    """The launcher finds a gang by them after its own crash, and tells an attempt from the one before."""
    wanted = {
        ITERATION: label_value(gang.iteration),
        "preference-tuning/plan": gang.plan_digest[:40],
        "preference-tuning/attempt": str(gang.attempt),
    }
    for pods in workload.pods if (workload := _workload(gang, seen)) else []:
        for key, value in wanted.items():
            if pods.labels.get(key) != value:
                yield f"{pods.where} (template.metadata.labels)", f"{key}: {pods.labels.get(key)}, not {value}"


@gang_rule("error", fix="Set backend: rayjob for engine nemo_rl, and another for trl.")
def engine_backend(gang: Gang, seen: Manifests) -> Hits:
    """NeMo RL places its processes on a Ray cluster and finds one node without it; torchrun has no rank in a RayJob."""
    backend = gang.settings.backend
    if (gang.engine == "nemo_rl") != (backend == "rayjob") and (gang.nodes > 1 or backend == "rayjob"):
        yield "recipe compute.kubernetes.backend", f"{backend} for engine {gang.engine} on {gang.nodes} nodes"


@gang_rule("error", fix="Take it out of compute.kubernetes.env.")
def reserved_env(gang: Gang, seen: Manifests) -> Hits:
    """Every pod would have the same rank, or a master that is none of the gang."""
    for name in sorted(OURS & gang.settings.env.keys()):
        yield "recipe compute.kubernetes.env", f"{name}={gang.settings.env[name]}"


@gang_rule("warning", fix="Keep Pipes' files below the mount, and pass its variables to the pods.")
def pipes_out_of_reach(gang: Gang, seen: Manifests) -> Hits:
    """The run's progress is not seen in Dagster. The result is not touched: it is read from result.json."""
    if not gang.pipes or (workload := _workload(gang, seen)) is None:
        return
    for pods in workload.pods:
        there = {text(row, "name") for c in pods.containers for row in rows(c.node, "env")}
        if missing := sorted(gang.pipes.keys() - there):
            yield f"{pods.where}.containers", f"no {', '.join(missing)}"
    for name, value in gang.pipes.items():
        path = _pipes_path(value)
        if path and PurePosixPath(gang.settings.mount) not in PurePosixPath(path).parents:
            yield f"pipes {name}", f"{path}, the volume is at {gang.settings.mount}"


def _pipes_path(value: str) -> str:
    """The file that Dagster Pipes' bootstrap (base64 of zlib of JSON) names; empty where it names none."""
    try:
        return text(json.loads(zlib.decompress(base64.b64decode(value))), "path")
    except (ValueError, zlib.error):
        return ""
