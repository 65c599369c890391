"""The garbage collectors: dependants of what is gone, owners that wait for their dependants, pods of lost nodes."""

from __future__ import annotations

from contextlib import suppress

from .kinds import KINDS, Object, Refused
from .objects import deleting, ended, owners, place, set_status, with_condition
from .storage import Storage

FOREGROUND = "foregroundDeletion"
OWNERS = {(k.api_version, k.kind): name for name, k in KINDS.items()}


def reconcile(storage: Storage) -> None:
    with storage.changed:  # one moment: a dependant is never seen without the owner that it was made with
        everything = [(kind, obj) for kind in KINDS for obj in storage.list(kind)[0]]
    by_uid = {obj["metadata"]["uid"]: obj for _, obj in everything}
    dependants: dict[str, list[tuple[str, Object]]] = {}
    for kind, obj in everything:
        for owner in owners(obj):
            dependants.setdefault(owner["uid"], []).append((kind, obj))
    for kind, obj in everything:
        if FOREGROUND in (obj["metadata"].get("finalizers") or []) and deleting(obj):
            _foreground(storage, kind, obj, dependants)
        # An owner of the same name but another uid is somebody else.
        elif owners(obj) and not any(o["uid"] in by_uid for o in owners(obj)) and not deleting(obj):
            storage.delete(kind, *place(obj), uid=obj["metadata"]["uid"])
    _pods(storage)


def _foreground(storage: Storage, kind: str, obj: Object, dependants: dict[str, list[tuple[str, Object]]]) -> None:
    """Dependants first, in the foreground where they have their own; the owner goes when no blocking one is left."""
    uid = obj["metadata"]["uid"]
    mine = dependants.get(uid, [])
    for theirs, dependant in mine:
        if not deleting(dependant):
            way = "Foreground" if dependants.get(dependant["metadata"]["uid"]) else "Background"
            with suppress(Refused):  # gone by itself meanwhile
                storage.delete(theirs, *place(dependant), propagation=way, uid=dependant["metadata"]["uid"])
    blocking = [d for _, d in mine if any(o["uid"] == uid and o.get("blockOwnerDeletion") for o in owners(d))]
    if not blocking:
        namespace, name = place(obj)
        rest = [f for f in obj["metadata"]["finalizers"] if f != FOREGROUND]
        storage.merge(kind, namespace, name, {"metadata": {"finalizers": rest or None}})


def _pods(storage: Storage) -> None:
    """The pod collector: pods that no kubelet will ever end."""
    nodes = {place(n)[1] for n in storage.list("Node")[0]}
    for pod in storage.list("Pod")[0]:
        node = pod["spec"].get("nodeName")
        if not node and deleting(pod):
            if not ended(pod):
                pod = set_status(storage, pod, phase="Failed")
            storage.delete("Pod", *place(pod), grace_s=0, uid=pod["metadata"]["uid"])
        elif node and nodes and node not in nodes:
            if not ended(pod):
                message = "PodGC: node no longer exists"
                lost = with_condition(pod, "DisruptionTarget", "True", "DeletionByPodGC", message)
                pod = set_status(storage, pod, phase="Failed", conditions=lost)
            storage.delete("Pod", *place(pod), grace_s=0, uid=pod["metadata"]["uid"])
