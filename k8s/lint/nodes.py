"""Rules on a gang's nodes and volumes: which pool of Karpenter makes them, and what a pod may ask of one."""

from k8s.gang import INSTANCES
from k8s.lint.manifests import CAPACITY, EFA, GPU, INSTANCE_TYPE, Manifests, Pods, matches, namespace, where
from k8s.lint.queues import offers, quota
from k8s.lint.rules import Hits, Node, at, labels, quantity, rows, rule, sub, text, texts

ZONE = "topology.kubernetes.io/zone"
CAPACITIES = frozenset({"spot", "on-demand", "reserved"})
OWN_LABELS = ("kubernetes.io", "k8s.io", "karpenter.sh", "k8s.aws")
"""Domains of labels that nodes get without the pool's saying so."""


def _pools(seen: Manifests) -> list[Node]:
    """Karpenter's pools for trainings: by our label, or without it by their taint or instance types."""

    def trains(pool: Node) -> bool:
        purpose = text(pool, "spec", "template", "metadata", "labels", "preference-tuning/pool")
        taints = {text(taint, "key") for taint in rows(pool, "spec", "template", "spec", "taints")}
        return purpose == "training" or (not purpose and (GPU in taints or _fabric(pool)))

    return [pool for pool in seen.of("NodePool", "karpenter.sh/") if trains(pool)]


def _required(pool: Node, key: str) -> list[str]:
    listed = [r for r in rows(pool, "spec", "template", "spec", "requirements") if text(r, "key") == key]
    return [value for row in listed if text(row, "operator") == "In" for value in texts(row, "values")]


def _fabric(pool: Node) -> bool:
    return any(INSTANCES[name].efa for name in _required(pool, INSTANCE_TYPE) if name in INSTANCES)


def _unmet(pool: Node, chosen: dict[str, list[str]]) -> str:
    """The first selection that no node of the pool meets; empty without one."""
    own = labels(pool, "spec", "template", "metadata", "labels")
    listed = rows(pool, "spec", "template", "spec", "requirements")
    for key, wanted in chosen.items():
        offered = [own[key]] if key in own else _required(pool, key)
        barred = [
            v for r in listed if text(r, "key") == key and text(r, "operator") == "NotIn" for v in texts(r, "values")
        ]
        named = key in own or any(text(row, "key") == key for row in listed)
        met = bool({*offered} & {*wanted}) if offered else named or key.partition("/")[0].endswith(OWN_LABELS)
        if not met or {*wanted} <= {*barred}:
            return f"{key} {', '.join(wanted)}, the pool has {', '.join(offered) or 'none'}"
    return ""


def _refusal(pool: Node, pods: Pods) -> str:
    """Why no node of the pool takes the pods; empty when one does."""
    for taint in rows(pool, "spec", "template", "spec", "taints"):
        if not pods.tolerates(taint):
            return f"taint {text(taint, 'key')}={text(taint, 'value')}:{text(taint, 'effect')} is not tolerated"
    return _unmet(pool, pods.selected)


@rule("Let a pool offer what the gang selects, with taints that it tolerates and limits that hold it.")
def no_pool(seen: Manifests) -> Hits:
    """Karpenter makes no node for a pod that fits none of its pools, nor beyond their limits: the gang waits until the
    launch gives up, and only Karpenter's log says why."""
    pools = _pools(seen)
    for work in seen.trainings if pools else []:
        asking = [pods for pods in work.pods if pods.gpus]
        for pods in asking:
            reasons = [f"{text(pool, 'metadata', 'name')}: {_refusal(pool, pods)}" for pool in pools]
            if all(_refusal(pool, pods) for pool in pools):
                yield pods.where, "; ".join(reasons)
        fitting = [pool for pool in pools if any(not _refusal(pool, pods) for pods in asking)]
        limits, asked = [at(pool, "spec", "limits", GPU) for pool in fitting], sum(p.count * p.gpus for p in asking)
        if limits and None not in limits and (most := sum(map(quantity, limits))) < asked:
            yield where(fitting[0], "spec.limits"), f"{GPU}: {most:g} in all, {work.where} asks {asked}"


@rule("Label the nodes of a pool (template.metadata.labels) with what the flavour's nodeLabels say.")
def flavour_without_pool(seen: Manifests) -> Hits:
    """Kueue adds the flavour's labels to the selector of the pods that it admits: no node will ever have them."""
    used = {
        text(offer, "name") for queue in seen.of("ClusterQueue") for offer in offers(queue, GPU) if quota(offer, GPU)
    }
    pools = _pools(seen)
    for flavour in seen.of("ResourceFlavor") if pools else []:
        chosen = {key: [value] for key, value in labels(flavour, "spec", "nodeLabels").items()}
        if text(flavour, "metadata", "name") in used and all(_unmet(pool, chosen) for pool in pools):
            yield where(flavour, "spec.nodeLabels"), _unmet(pools[0], chosen)


@rule(
    'Set consolidationPolicy: WhenEmpty, consolidateAfter, budgets: [{nodes: "0", reasons: [Drifted, Underutilized]}].'
)
def drift_budget(seen: Manifests) -> Hits:
    """A new AMI drifts every node, and Karpenter replaces those of a running gang, up to a tenth at once; by default it
    also moves a training to a cheaper node in the middle of a step."""
    for pool in _pools(seen):
        disruption = sub(pool, "spec", "disruption")
        budgets = [b for b in rows(disruption, "budgets") if text(b, "nodes") in {"0", "0%"}]
        stopped = {reason for b in budgets for reason in (texts(b, "reasons") or ["Drifted", "Underutilized"])}
        if missing := sorted({"Drifted", "Underutilized"} - stopped):
            yield where(pool, "spec.disruption.budgets"), f"nothing stops {' and '.join(missing)}"
        if (policy := text(disruption, "consolidationPolicy")) != "WhenEmpty":
            yield where(pool, "spec.disruption.consolidationPolicy"), policy or "not set: WhenEmptyOrUnderutilized"
        elif text(disruption, "consolidateAfter") in {"", "Never"}:
            yield where(pool, "spec.disruption.consolidateAfter"), "empty nodes are kept, and paid for"


@rule("Set limits: nvidia.com/gpu to what a run may take.")
def pool_limits(seen: Manifests) -> Hits:
    """One wrong number of nodes in a recipe buys a fleet."""
    for pool in _pools(seen):
        if not sub(pool, "spec", "limits"):
            yield where(pool, "spec.limits"), "none"


@rule(f"Require one {ZONE}; make a pool for each zone that you want to fall back to.")
def several_zones(seen: Manifests) -> Hits:
    """EFA does not cross zones: a gang over two of them never connects, or falls back to TCP."""
    for pool in _pools(seen):
        if _fabric(pool) and len(zones := _required(pool, ZONE)) != 1:
            yield where(pool, "spec.template.spec.requirements"), f"zones {zones or 'of all subnets'}"


@rule(f"Put {CAPACITY} into nodeSelector, with one of spot, on-demand and reserved.")
def capacity_spelling(seen: Manifests) -> Hits:
    """The value is compared as it stands, and the API server takes any: 'Spot' matches no node, and the pod waits. A
    label on the pod chooses nothing: the gang runs wherever it fits, at the on-demand price."""
    chosen = [(f"{p.where}.nodeSelector", value) for p in seen.pods for value in p.selected.get(CAPACITY, [])]
    for pool in seen.of("NodePool", "karpenter.sh/"):
        chosen += [(where(pool, "spec.template.spec.requirements"), value) for value in _required(pool, CAPACITY)]
    yield from ((place, f"{CAPACITY}: {value}") for place, value in chosen if value not in CAPACITIES)
    for pods in seen.pods:
        if value := pods.labels.get(CAPACITY):
            yield f"{pods.where} (template.metadata.labels)", f"{CAPACITY}: {value}"


@rule("Ask for at most what the instance has left beside the system (k8s/gang.py).")
def over_node(seen: Manifests) -> Hits:
    """No node of that type will ever hold the pod: Karpenter makes none, and the gang waits until it gives up."""
    for pods in seen.pods:
        if (machine := pods.instance) is None:
            continue
        has = {"cpu": machine.cpu_m / 1000, "memory": machine.memory_mib * 2**20, GPU: machine.gpus, EFA: machine.efa}
        for name, there in has.items():
            if (asked := max(pods.asks(name), pods.limit(name))) > there:
                asked, there = (value / (2**30 if name == "memory" else 1) for value in (asked, there))
                yield f"{pods.where}.containers", f"{name}: {asked:g}, {machine.name} has {there:g}"


@rule(f"Request {EFA} as often as the instance has adapters, requests = limits.")
def efa_missing(seen: Manifests) -> Hits:
    """Between nodes NCCL then falls back to TCP through one interface, at a small part of the bandwidth: a p5en has 16
    adapters, a p4d 4, and the devices wait for the network."""
    for work in seen.gangs:
        asking = [pods for pods in work.pods if pods.gpus]
        for pods in asking if sum(p.count for p in asking) > 1 else []:
            asked = min(pods.asks(EFA), pods.limit(EFA))
            if pods.instance and pods.instance.efa not in (0, asked):
                yield f"{pods.where}.containers", f"{asked:g} of {pods.instance.efa} on {pods.instance.name}"


@rule("Mount an emptyDir {medium: Memory, sizeLimit: ...} at /dev/shm.")
def no_shm(seen: Manifests) -> Hits:
    """The container runtime gives 64 MiB, of which NCCL between the processes of a node and every data loader take
    more: a bus error in the first step."""
    for pods in (pods for work in seen.trainings for pods in work.pods if pods.gpus > 1):
        mounts = [m for c in pods.containers for m in rows(c.node, "volumeMounts")]
        mounted = {text(m, "name") for m in mounts if text(m, "mountPath").rstrip("/") == "/dev/shm"}
        found = [v for v in rows(pods.spec, "volumes") if text(v, "name") in mounted]
        if not any(text(volume, "emptyDir", "medium") == "Memory" for volume in found):
            yield (
                f"{pods.where}.volumes",
                f"/dev/shm: {', '.join(map(str, found[0]))}" if found else "no memory at /dev/shm",
            )


@rule("Make the claim ReadWriteMany (FSx for Lustre, Managed Lustre).")
def claim_not_shared(seen: Manifests) -> Hits:
    """The pods of a gang are on different nodes: with ReadWriteOnce all but the first wait to mount it."""
    claims = seen.named("PersistentVolumeClaim")
    for work, pods, name in ((w, p, name) for w in seen.gangs for p in w.pods for name in p.claims()):
        claim = claims.get((namespace(work.node), name))
        if claim is not None and "ReadWriteMany" not in texts(claim, "spec", "accessModes"):
            yield f"{pods.where}.volumes", f"claim {name!r}: {texts(claim, 'spec', 'accessModes')}"


@rule("Write a version, or better name@sha256:<digest>.")
def image_floating(seen: Manifests) -> Hits:
    """Without a version nobody can say what runs, nor go back to what ran: two pods of a gang may differ."""
    for container in (container for pods in seen.pods for container in pods.containers):
        image, name = (image := text(container.node, "image")), image.rpartition("/")[2]
        if image and "@" not in image and (":" not in name or name.endswith(":latest")):
            yield f"{container.where}.image", image


@rule("Remove the budget: the gang's own policy handles evictions.")
def budget_blocks_drain(seen: Manifests) -> Hits:
    """Seen: the eviction is answered with 429, the drain never delivers SIGTERM, and the spot node takes the pod with
    it when its time is up."""
    for budget in seen.of("PodDisruptionBudget"):
        near = [p for w in seen.workloads if namespace(w.node) == namespace(budget) for p in w.pods]
        covered = sum(p.count for p in near if matches(sub(budget, "spec", "selector"), p.labels))
        most, least = text(budget, "spec", "maxUnavailable"), text(budget, "spec", "minAvailable")
        if most in {"0", "0%"}:
            yield where(budget, "spec.maxUnavailable"), f"{most}: no pod may ever be evicted"
        elif least == "100%" or 0 < covered <= quantity(least):
            yield where(budget, "spec.minAvailable"), f"{least} of {covered or 'all'} pods: none may ever be evicted"
