"""Rules on gangs and their queues: who admits a gang whole, and whether its quota can ever hold it."""

from __future__ import annotations

from k8s.lint.manifests import EFA, GPU, QUEUE, Manifests, Pods, Workload, namespace, where
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import Node, labels, quantity, rows, text


def _queue(workload: Workload) -> str:
    """The LocalQueue; empty when Volcano schedules, or nobody."""
    return labels(workload.object, "metadata", "labels").get(QUEUE, "")


def _scheduled_whole(workload: Workload) -> bool:
    return workload.kind == "VolcanoJob" or bool(_queue(workload))


@rule("warning", fix=f"Label it {QUEUE}, or use a Volcano job.")
def no_gang_scheduler(seen: Manifests) -> Hits:
    """Seen: the default scheduler starts three pods of four, which hold their devices and wait; two gangs can block
    each other for ever."""
    for workload in seen.gangs:
        if not _scheduled_whole(workload):
            yield workload.where, f"{workload.size} pods, no queue and the default scheduler"


@rule("warning", fix=f"Label it {QUEUE}: training.")
def no_queue(seen: Manifests) -> Hits:
    """What is in no queue takes devices past everybody's quota."""
    for workload in seen.trainings:
        missing = not text(workload.spec, "queue") if workload.kind == "VolcanoJob" else not _scheduled_whole(workload)
        if missing and not workload.gang:
            yield workload.where, f"no label {QUEUE}"
        elif missing and workload.kind == "VolcanoJob":
            yield f"{workload.where} spec.queue", "not set: the queue 'default'"


@rule("error", fix="Name a queue that the manifests make, or add it.")
def queue_unknown(seen: Manifests) -> Hits:
    """A workload of a queue that is not there waits for ever, without an error anywhere."""
    local = {(namespace(q), text(q, "metadata", "name")) for q in seen.of("LocalQueue")}
    volcano = {text(q, "metadata", "name") for q in seen.of("Queue", "scheduling.volcano.sh/")}
    cluster = {text(q, "metadata", "name") for q in seen.of("ClusterQueue")}
    flavours = {text(f, "metadata", "name") for f in seen.of("ResourceFlavor")}
    for workload in seen.trainings:
        queue, here = _queue(workload), text(workload.spec, "queue")
        if local and queue and (namespace(workload.object), queue) not in local:
            yield f"{workload.where} metadata.labels", f"LocalQueue {queue!r} of {namespace(workload.object)!r}"
        if volcano and workload.kind == "VolcanoJob" and here and here not in volcano:
            yield f"{workload.where} spec.queue", f"Volcano queue {here!r}"
    for queue in seen.of("LocalQueue"):
        if (name := text(queue, "spec", "clusterQueue")) not in cluster:
            yield where(queue, "spec.clusterQueue"), f"ClusterQueue {name!r}"
    for queue in seen.of("ClusterQueue"):
        for name in sorted({text(f, "name") for f in _flavours(queue)} - flavours):
            yield where(queue, "spec.resourceGroups"), f"ResourceFlavor {name!r}"


@rule("error", fix="Cover the resource, with a quota that holds one whole gang, in one flavour.")
def quota_too_small(seen: Manifests) -> Hits:
    """A gang that asks for more than any flavour has, or for a resource that the queue does not cover, is never
    admitted: it waits without an error."""
    clusters = {text(q, "metadata", "name"): q for q in seen.of("ClusterQueue")}
    local = {
        (namespace(q), text(q, "metadata", "name")): text(q, "spec", "clusterQueue") for q in seen.of("LocalQueue")
    }
    for workload in seen.trainings:
        cluster = clusters.get(local.get((namespace(workload.object), _queue(workload)), ""))
        if cluster is None or text(cluster, "spec", "cohortName"):  # a cohort may lend what is missing
            continue
        for resource in (GPU, EFA, "memory", "cpu"):
            asked = sum(p.count * p.asks(resource, "requests") for p in workload.pods)
            fitting = [f for f in _flavours(cluster) if all(_fits(seen, cluster, f, p) for p in workload.pods)]
            most = max((_quota(f, resource) for f in fitting), default=0.0)
            if asked > most:
                yield where(cluster, "spec.resourceGroups"), f"{resource}: {most:g}, {workload.where} asks {asked:g}"


@rule("warning", fix="Give the flavour the node label that its nodes carry.")
def flavour_without_nodes(seen: Manifests) -> Hits:
    """A flavour without nodeLabels puts no selector on the pods: spot quota is spent on on-demand nodes."""
    with_devices = {text(f, "name") for q in seen.of("ClusterQueue") for f in _flavours(q) if _quota(f, GPU)}
    for flavour in seen.of("ResourceFlavor"):
        if text(flavour, "metadata", "name") in with_devices and not labels(flavour, "spec", "nodeLabels"):
            yield where(flavour, "spec.nodeLabels"), "none, for a quota of GPUs"


def _fits(seen: Manifests, cluster: Node, quota: Node, pods: Pods) -> bool:
    """Whether Kueue may give the pods this flavour: over the label keys of all flavours of the queue, what the pods
    select must be the flavour's, and its taints must be tolerated."""
    flavours = {text(f, "metadata", "name"): f for f in seen.of("ResourceFlavor")}
    keys = {key for f in _flavours(cluster) for key in labels(flavours.get(text(f, "name")), "spec", "nodeLabels")}
    flavour = flavours.get(text(quota, "name"))
    chosen = labels(flavour, "spec", "nodeLabels")
    tolerations = rows(pods.spec, "tolerations")
    return all(chosen.get(key) in wanted for key in keys if (wanted := pods.selects(key))) and all(
        any(_tolerates(row, taint) for row in tolerations) for taint in rows(flavour, "spec", "nodeTaints")
    )


def _tolerates(row: Node, taint: Node) -> bool:
    exists = text(row, "operator") == "Exists"
    return text(row, "key") in {text(taint, "key"), "" if exists else text(taint, "key")} and (
        exists or text(row, "value") == text(taint, "value")
    )


def _flavours(cluster: Node) -> list[Node]:
    return [flavour for group in rows(cluster, "spec", "resourceGroups") for flavour in rows(group, "flavors")]


def _quota(flavour: Node, resource: str) -> float:
    return max(
        (quantity(r.get("nominalQuota")) for r in rows(flavour, "resources") if text(r, "name") == resource),
        default=0.0,
    )
