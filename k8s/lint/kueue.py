"""Rules on gangs and their queues: who admits a gang whole, and whether its quota can ever hold it."""

from __future__ import annotations

from k8s.lint.charges import charges, cluster_queue, quota
from k8s.lint.manifests import Manifests
from k8s.lint.pods import GPU, QUEUE, Workload, namespace, where
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import Node, labels, rows, sub, text, texts


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
    for workload in seen.trainings:
        queue = cluster_queue(seen, workload) or {}
        for charge in charges(seen, workload):
            for resource, (most, asked) in charge.short.items():
                yield where(queue, "spec.resourceGroups"), f"{resource}: {most:g}, {charge.pods.where} asks {asked:g}"


@rule("warning", fix="Give both a label of one key with two values, the wider a taint, or keep one of them.")
def flavour_takes_others(seen: Manifests) -> Hits:
    """Kueue compares what pods select with the label keys of one flavour at a time, so a flavour that names less than
    another takes its gangs too: they are charged to the wrong quota, and pass a quota of 0 of their own."""
    known = {text(f, "metadata", "name"): f for f in seen.of("ResourceFlavor")}
    for queue in seen.of("ClusterQueue"):
        for group in rows(queue, "spec", "resourceGroups"):
            offers = rows(group, "flavors")
            for wider, narrower in ((a, b) for a in offers for b in offers if a is not b and quota(a, GPU)):
                names = [text(offer, "name") for offer in (wider, narrower)]
                less, more = (labels(known.get(name), "spec", "nodeLabels") for name in names)
                taints = [rows(known.get(name), "spec", "nodeTaints") for name in names]
                if less.items() < more.items() and all(taint in taints[1] for taint in taints[0]):
                    missing = ", ".join(sorted(more.keys() - less.keys()))
                    yield where(queue, "spec.resourceGroups"), f"{names[0]} takes what selects {names[1]}: no {missing}"


@rule("error", fix="Take stopPolicy away, and let namespaceSelector match the namespace of the gang.")
def queue_closed(seen: Manifests) -> Hits:
    """A queue on hold admits nothing, nor one whose selector leaves the namespace out (without a selector: all of
    them): the gang waits, and only its Workload says why."""
    clusters = {text(q, "metadata", "name"): q for q in seen.of("ClusterQueue")}
    local = {(namespace(q), text(q, "metadata", "name")): q for q in seen.of("LocalQueue")}
    spaces = {text(n, "metadata", "name"): labels(n, "metadata", "labels") for n in seen.of("Namespace", "v1")}
    for workload in seen.trainings:
        space = namespace(workload.object)
        queue = local.get((space, _queue(workload)))
        cluster = clusters.get(text(queue, "spec", "clusterQueue"))
        for holder in (queue, cluster):
            if holder and (policy := text(holder, "spec", "stopPolicy")) not in {"", "None"}:
                yield where(holder, "spec.stopPolicy"), f"{policy}, for {workload.where}"
        if cluster is not None and _excludes(sub(cluster, "spec").get("namespaceSelector"), space, spaces.get(space)):
            yield where(cluster, "spec.namespaceSelector"), f"leaves out {space!r} of {workload.where}"


@rule("warning", fix="Give the flavour the node label that its nodes carry.")
def flavour_without_nodes(seen: Manifests) -> Hits:
    """A flavour without nodeLabels puts no selector on the pods: spot quota is spent on on-demand nodes."""
    for flavour in flavours_with_devices(seen):
        if not labels(flavour, "spec", "nodeLabels"):
            yield where(flavour, "spec.nodeLabels"), "none, for a quota of GPUs"


def flavours_with_devices(seen: Manifests) -> list[Node]:
    """Flavours of which some queue has a quota of GPUs."""
    named = {text(f, "name") for q in seen.of("ClusterQueue") for f in _flavours(q) if quota(f, GPU)}
    return [flavour for flavour in seen.of("ResourceFlavor") if text(flavour, "metadata", "name") in named]


def _excludes(selector: object, space: str, known: dict[str, str] | None) -> bool:
    """Whether a selector leaves a namespace out. `known`: its labels, None where the manifests do not make it."""
    if not isinstance(selector, dict):
        return True
    there = {**(known or {}), "kubernetes.io/metadata.name": space}
    wanted = [(key, "In", [value]) for key, value in labels(selector, "matchLabels").items()]
    for row in rows(selector, "matchExpressions"):
        wanted.append((text(row, "key"), text(row, "operator"), texts(row, "values")))
    for key, operator, values in wanted:
        if key not in there and known is None:
            continue
        label_value = there.get(key)
        ends = {"In": label_value in values, "NotIn": label_value not in values, "Exists": label_value is not None}
        if not ends.get(operator, label_value is None):
            return True
    return False


def _flavours(cluster: Node) -> list[Node]:
    return [flavour for group in rows(cluster, "spec", "resourceGroups") for flavour in rows(group, "flavors")]
