"""Rules on what a pod asks of its node: devices, adapters, memory, shared memory, the volume of the checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.lint.manifests import Manifests
from k8s.lint.pods import EFA, GPU, Pods, namespace, where
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import Node, is_quantity, quantity, rows, sub, text, texts

MIB = 1024.0**2


def _device(name: str) -> bool:
    return name in (GPU, EFA) or name.startswith("vpc.amazonaws.com/")


@rule("error", fix="Write the same number under requests and limits, or limits alone.")
def device_requests(seen: Manifests) -> Hits:
    """Devices cannot be overcommitted: a Job is refused at once, an operator's kind is taken and its pods are not."""
    for pods in seen.pods:
        for container in pods.containers:
            resources = sub(container.node, "resources")
            for name in sorted({*sub(resources, "limits"), *sub(resources, "requests")}, key=str):
                asked, limit = (sub(resources, side).get(name) for side in ("requests", "limits"))
                if _device(str(name)) and asked is not None and quantity(asked) != quantity(limit):
                    yield f"{container.where}.resources", f"{name}: requests {asked}, limits {limit}"


@rule("error", fix="Write a number with one of the suffixes m, k, M, G, T, Ki, Mi, Gi, Ti, and no space.")
def quantity_invalid(seen: Manifests) -> Hits:
    """The API server refuses what is no quantity; of an operator's kind whose definition leaves pods open it takes it,
    and refuses the pods."""
    for place, value in _quantities(seen):
        if not is_quantity(value):
            yield place, repr(value)


@rule("error", fix="Raise the limit, or lower the request.")
def request_over_limit(seen: Manifests) -> Hits:
    """The API server refuses the pod; a Job or an operator's kind is taken and then makes none."""
    for pods in seen.pods:
        for container in pods.containers:
            asked, limits = (sub(container.node, "resources", side) for side in ("requests", "limits"))
            for name in sorted({*asked} & {*limits}, key=str):
                if not _device(str(name)) and quantity(asked[name]) > quantity(limits[name]) > 0:
                    yield f"{container.where}.resources", f"{name}: requests {asked[name]}, limits {limits[name]}"


def _quantities(seen: Manifests) -> Iterator[tuple[str, object]]:
    """Of containers, volumes in memory, claims, volumes and quotas, each with its place."""
    for pods in seen.pods:
        for container in pods.containers:
            for side in ("requests", "limits"):
                for name, value in sub(container.node, "resources", side).items():
                    yield f"{container.where}.resources.{side}.{name}", value
        for i, volume in enumerate(rows(pods.spec, "volumes")):
            if "sizeLimit" in (disk := sub(volume, "emptyDir")):
                yield f"{pods.where}.volumes[{i}].emptyDir.sizeLimit", disk["sizeLimit"]
    for claim in seen.of("PersistentVolumeClaim", "v1"):
        for name, value in sub(claim, "spec", "resources", "requests").items():
            yield where(claim, f"spec.resources.requests.{name}"), value
    for volume in seen.of("PersistentVolume", "v1"):
        for name, value in sub(volume, "spec", "capacity").items():
            yield where(volume, f"spec.capacity.{name}"), value
    for queue in seen.of("ClusterQueue"):
        for group in rows(queue, "spec", "resourceGroups"):
            for flavour in rows(group, "flavors"):
                for row in rows(flavour, "resources"):
                    yield where(queue, f"spec.resourceGroups {text(flavour, 'name')}"), row.get("nominalQuota")


@rule("warning", fix="Set requests = limits for memory and cpu: the whole node, less a reserve.")
def not_guaranteed(seen: Manifests) -> Hits:
    """A pod whose memory request is below its limit is the first to be killed when the node runs short, and what it
    does not request somebody else gets."""
    for pods in seen.trainer_pods:
        for container in pods.containers:
            if not container.asks(GPU):
                continue
            for name in ("memory", "cpu"):
                asked, limit = container.asks(name, "requests"), container.asks(name)
                if not asked:
                    yield f"{container.where}.resources", f"no {name} requested"
                elif limit and asked != limit:
                    yield (
                        f"{container.where}.resources",
                        f"{name}: requests {_say(name, asked)}, limits {_say(name, limit)}",
                    )


@rule("error", fix="Ask for at most what the instance has left beside the system (k8s/instances.py).")
def over_node(seen: Manifests) -> Hits:
    """No node of that type will ever hold the pod: Karpenter makes none, and the gang waits until it gives up."""
    for pods in seen.pods:
        if (machine := pods.instance) is None:
            continue
        has = {"cpu": machine.cpu_m / 1000, "memory": machine.memory_mib * MIB, GPU: machine.gpus, EFA: machine.efa}
        for name, there in has.items():
            if (asked := max(pods.asks(name, "requests"), pods.asks(name))) > there:
                yield f"{pods.where}.containers", f"{name}: {_say(name, asked)}, {machine.name} has {_say(name, there)}"


@rule("error", fix=f"Request {EFA} as often as the instance has adapters, requests = limits.")
def efa_missing(seen: Manifests) -> Hits:
    """Between nodes NCCL then falls back to TCP through one interface, at a small part of the bandwidth: a p5en has 16
    adapters, a p4d 4, and the devices wait for the network."""
    for workload in seen.gangs:
        with_devices = [p for p in workload.pods if p.gpus]
        for pods in with_devices if sum(p.count for p in with_devices) > 1 else []:
            if pods.instance and pods.instance.efa and pods.asks(EFA) != pods.instance.efa:
                yield f"{pods.where}.containers", f"{pods.asks(EFA):g} of {pods.instance.efa} on {pods.instance.name}"


@rule("error", fix="Mount an emptyDir {medium: Memory, sizeLimit: ...} at /dev/shm.")
def no_shm(seen: Manifests) -> Hits:
    """The container runtime gives 64 MiB, of which NCCL between the processes of a node and every data loader take
    more: a bus error in the first step."""
    for pods in seen.trainer_pods:
        volume = pods.volume("/dev/shm")
        if pods.gpus > 1 and (volume is None or text(volume, "emptyDir", "medium") != "Memory"):
            yield (
                f"{pods.where}.volumes",
                "no memory at /dev/shm" if volume is None else f"/dev/shm: {', '.join(map(str, volume))}",
            )


@rule("error", fix="Set a sizeLimit, and count it in the container's memory.")
def memory_disk(seen: Manifests) -> Hits:
    """A file in a memory-backed volume is memory of the pod: without a limit, or with one as large as the container's
    own, it ends in an out-of-memory kill."""
    for pods in seen.pods:
        sizes = [_size(v) for v in rows(pods.spec, "volumes") if text(v, "emptyDir", "medium") == "Memory"]
        memory = pods.asks("memory")
        if any(not size for size in sizes):
            yield f"{pods.where}.volumes", "an emptyDir of medium Memory has no sizeLimit"
        elif sizes and sum(sizes) >= memory:
            yield f"{pods.where}.volumes", f"{_gib(sum(sizes))} in memory, the containers' limit is {_gib(memory)}"


@rule("error", fix="Mount the claim of the checkpoints.")
def no_checkpoint_volume(seen: Manifests) -> Hits:
    """The disk of a spot node dies with it, and with the disk every checkpoint."""
    for workload in seen.trainings:
        for pods in workload.pods:
            claims = [v for v in rows(pods.spec, "volumes") if sub(v, "persistentVolumeClaim")]
            if pods.containers and not claims:
                yield f"{pods.where}.volumes", "no persistentVolumeClaim"


@rule("error", fix="Make the claim ReadWriteMany (FSx for Lustre, Managed Lustre).")
def claim_not_shared(seen: Manifests) -> Hits:
    """The pods of a gang are on different nodes: with ReadWriteOnce all but the first wait to mount it."""
    claims = _named(seen, "PersistentVolumeClaim")
    for workload in seen.gangs:
        for pods in workload.pods:
            for name in _claims(pods):
                claim = claims.get((namespace(workload.object), name))
                if claim is not None and "ReadWriteMany" not in texts(claim, "spec", "accessModes"):
                    yield f"{pods.where}.volumes", f"claim {name!r}: {texts(claim, 'spec', 'accessModes')}"


@rule("error", fix="Name one that the manifests make, or add it.")
def reference_missing(seen: Manifests) -> Hits:
    """The pod waits for a claim that is not there, or its controller is refused each pod for the missing account."""
    claims, accounts = _named(seen, "PersistentVolumeClaim"), _named(seen, "ServiceAccount")
    for workload in seen.workloads:
        space = namespace(workload.object)
        for pods in workload.all_pods:
            for name in _claims(pods) if any(s == space for s, _ in claims) else []:
                if (space, name) not in claims:
                    yield f"{pods.where}.volumes", f"claim {name!r} in {space!r}"
            account = text(pods.spec, "serviceAccountName")
            if account and any(s == space for s, _ in accounts) and (space, account) not in accounts:
                yield f"{pods.where}.serviceAccountName", f"{account!r} in {space!r}"


@rule("error", fix="Write the containers out; YAML has no 'same as above'.")
def no_containers(seen: Manifests) -> Hits:
    """A template without containers makes no pod; the operators' kinds take it all the same."""
    for pods in seen.pods:
        if not pods.containers:
            yield f"{pods.where}.containers", "none"


def _named(seen: Manifests, kind: str) -> dict[tuple[str, str], Node]:
    return {(namespace(o), text(o, "metadata", "name")): o for o in seen.of(kind)}


def _claims(pods: Pods) -> list[str]:
    return [n for v in rows(pods.spec, "volumes") if (n := text(v, "persistentVolumeClaim", "claimName"))]


def _size(volume: Node) -> float:
    return quantity(text(volume, "emptyDir", "sizeLimit"))


def _say(name: str, amount: float) -> str:
    return _gib(amount) if name == "memory" else f"{amount:g}"


def _gib(amount: float) -> str:
    return f"{amount / 1024**3:.0f} GiB"
