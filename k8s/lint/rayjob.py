"""Rules on KubeRay's RayJob and RayCluster as NeMo RL uses them."""

from __future__ import annotations

from k8s.lint.manifests import Manifests
from k8s.lint.pods import Workload, where
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import rows, sub, text, whole

MODES = {"", "K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"}
"""How KubeRay submits an entrypoint; by default as a Job."""


def _clusters(seen: Manifests) -> list[Workload]:
    return [w for w in seen.trainings if w.kind in {"RayJob", "RayCluster"}]


def _jobs(seen: Manifests) -> list[Workload]:
    return [w for w in seen.trainings if w.kind == "RayJob"]


@rule("error", fix="Give rayClusterSpec (or clusterSelector, for a cluster that is kept).")
def ray_no_cluster(seen: Manifests) -> Hits:
    """The API server takes it; the operator then has nothing to start."""
    for job in seen.of("RayJob"):
        if not sub(job, "spec", "rayClusterSpec") and not sub(job, "spec", "clusterSelector"):
            yield where(job, "spec.rayClusterSpec"), "neither rayClusterSpec nor clusterSelector"


@rule("error", fix="Give every group whole nodes of the same devices, or the head none.")
def ray_uneven_gpus(seen: Manifests) -> Hits:
    """NeMo RL places gpus_per_node on each of its nodes: a head with one device (seed 003: 17 GPUs for 16 ranks), or
    workers without, are devices that nobody can use and a node that is paid for."""
    for cluster in _clusters(seen):
        gpu_counts = [p.gpus for p in cluster.pods]
        if len({gpus for gpus in gpu_counts if gpus}) > 1 or (gpu_counts and gpu_counts[0] and not all(gpu_counts)):
            yield f"{cluster.where} spec", f"GPUs of head and worker groups: {gpu_counts}"


@rule("error", fix="Set shutdownAfterJobFinishes: true and ttlSecondsAfterFinished.")
def ray_not_shut_down(seen: Manifests) -> Hits:
    """By default the cluster outlives its job, with all its devices."""
    for job in _jobs(seen):
        if job.spec.get("shutdownAfterJobFinishes") is not True and not sub(job.spec, "clusterSelector"):
            yield f"{job.where} spec.shutdownAfterJobFinishes", text(job.spec, "shutdownAfterJobFinishes") or "not set"


@rule("error", fix="Set minReplicas = replicas = maxReplicas, and no in-tree autoscaling.")
def ray_elastic_gang(seen: Manifests) -> Hits:
    """A training's world is fixed: with fewer workers it waits, more are idle, and the autoscaler takes either away."""
    for cluster in _clusters(seen):
        spec = sub(cluster.spec, "rayClusterSpec") or cluster.spec
        if spec.get("enableInTreeAutoscaling") is True:
            yield f"{cluster.where} spec", "enableInTreeAutoscaling: true"
        for i, group in enumerate(rows(spec, "workerGroupSpecs")):
            count = whole(group, "replicas", default=1)
            least, most = whole(group, "minReplicas", default=count), whole(group, "maxReplicas", default=count)
            if not least == count == most:
                yield f"{cluster.where} workerGroupSpecs[{i}]", f"replicas {count}, from {least} to {most}"


@rule("error", fix="Set backoffLimit: 0 and let the launcher open the next attempt.")
def ray_retries(seen: Manifests) -> Hits:
    """KubeRay cannot tell a pre-emption from a plan that never trains, and its retry carries no new attempt number:
    two clusters could write one checkpoint directory."""
    for job in _jobs(seen):
        if whole(job.spec, "backoffLimit"):
            yield f"{job.where} spec.backoffLimit", text(job.spec, "backoffLimit")


@rule("error", fix="Give the entrypoint that runs the training.")
def ray_no_entrypoint(seen: Manifests) -> Hits:
    """A RayCluster that somebody submits to by hand (seed 003) has no attempt, no exit code and no end."""
    for cluster in _clusters(seen):
        if not text(cluster.spec, "entrypoint"):
            yield (
                f"{cluster.where} spec.entrypoint",
                "RayCluster: nothing is run" if cluster.kind != "RayJob" else "none",
            )


@rule("error", fix="Set submissionMode: K8sJobMode.")
def ray_submission_mode(seen: Manifests) -> Hits:
    """KubeRay's definition has the field as free text: a word that it does not know is taken, and no Job submits the
    entrypoint."""
    for job in _jobs(seen):
        if (mode := text(job.spec, "submissionMode")) not in MODES:
            yield f"{job.where} spec.submissionMode", repr(mode)
