"""What every controller asks of an object: its conditions, its owner, its state, its quantities."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Iterable
from decimal import Decimal

from .kinds import KINDS, Object, kind_of
from .storage import Storage

ENDED = ("Succeeded", "Failed")
"""Phases that a pod never leaves."""
QUEUE = "kueue.x-k8s.io/queue-name"


def now() -> str:
    """As metav1.Time: whole seconds."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age_s(stamp: str) -> float:
    """Seconds since a metav1.Time."""
    return (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(stamp)).total_seconds()


def place(obj: Object) -> tuple[str, str]:
    """Namespace and name."""
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def deleting(obj: Object) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def phase(pod: Object) -> str:
    return pod.get("status", {}).get("phase") or "Pending"


def ended(pod: Object) -> bool:
    return phase(pod) in ENDED


def labels(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def notes(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


def owner_reference(obj: Object) -> Object:
    """What a controller writes on what it makes."""
    names = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": obj["metadata"]["name"]}
    return names | {"uid": obj["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}


def owned(objects: Iterable[Object], owner: Object) -> list[Object]:
    """Those that `owner` controls."""
    uid = owner["metadata"]["uid"]
    return [o for o in objects if any(r["uid"] == uid and r.get("controller") for r in owners(o))]


def owners(obj: Object) -> list[Object]:
    return obj["metadata"].get("ownerReferences") or []


def condition(obj: Object, type_: str) -> Object:
    """The condition where it is True, else nothing."""
    result = (c for c in obj.get("status", {}).get("conditions") or [] if c["type"] == type_ and c["status"] == "True")
    return next(result, {})


def with_condition(obj: Object, type_: str, status: str, reason: str, message: str) -> list[Object]:
    """The object's conditions with this one; its transition is now only where its status changed."""
    conditions = copy.deepcopy(obj.get("status", {}).get("conditions") or [])
    new: Object = {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": now()}
    for at, old in enumerate(conditions):
        if old["type"] == type_:
            if old["status"] == status:
                new["lastTransitionTime"] = old.get("lastTransitionTime", new["lastTransitionTime"])
            conditions[at] = old | new
            return conditions
    return [*conditions, new]


def set_status(storage: Storage, obj: Object, **changes: object) -> Object:
    """The object with these fields of its status; None drops one. Writes only what changed, and only over the version
    that was read: raises Refused 409 where somebody was faster (the next round reads again)."""
    status = {k: v for k, v in ((obj.get("status") or {}) | changes).items() if v is not None}
    if status == (obj.get("status") or {}):
        return obj
    return storage.update(kind_of(obj), place(obj)[0], obj | {"status": status}, "status")


def suspended(storage: Storage, obj: Object) -> bool:
    """Whether a job waits. Where there is a ClusterQueue there is a Kueue, whose webhook suspends what names a queue at
    its creation: an unset `suspend` is then a suspended one, so that no pod starts in between."""
    explicit = obj["spec"].get("suspend")
    if explicit is not None:
        return bool(explicit)
    return QUEUE in labels(obj) and bool(storage.list("ClusterQueue")[0])


def create(storage: Storage, kind: str, owner: Object, metadata: Object, **fields: object) -> Object:
    """A dependant of `owner` in its namespace."""
    namespace = owner["metadata"]["namespace"]
    served = KINDS[kind]
    obj: Object = {"apiVersion": served.api_version, "kind": served.kind}
    obj["metadata"] = metadata | {"namespace": namespace, "ownerReferences": [owner_reference(owner)]}
    return storage.create(kind, namespace, obj | copy.deepcopy(fields), "controller")


def event(storage: Storage, obj: Object, type_: str, reason: str, message: str, source: str) -> None:
    """An Event about an object, once for each of its messages."""
    namespace, name = place(obj)
    about = {"kind": obj["kind"], "apiVersion": obj["apiVersion"], "namespace": namespace, "name": name}
    about["uid"] = obj["metadata"]["uid"]
    for old in storage.list("Event", namespace)[0]:
        if old["involvedObject"].get("uid") == about["uid"] and (old["reason"], old["message"]) == (reason, message):
            return
    seen = {"firstTimestamp": now(), "lastTimestamp": now(), "count": 1, "source": {"component": source}}
    body: Object = {"apiVersion": "v1", "kind": "Event", "involvedObject": about, "type": type_, "reason": reason}
    body |= {"metadata": {"generateName": f"{name}.", "namespace": namespace}, "message": message} | seen
    storage.create("Event", namespace, body, source)


_TENS = {u: Decimal(1000) ** n for n, u in enumerate("kMGT", 1)}
UNITS = {"m": Decimal("0.001")} | _TENS | {f"{u}i": Decimal(1024) ** n for n, u in enumerate("KMGT", 1)}


def quantity(value: object) -> Decimal:
    """Of a resource: "500m", "4Gi", 8."""
    text = str(value)
    number = text.rstrip("mkKMGTi")
    return Decimal(number) * (UNITS[text[len(number) :]] if number != text else 1)


def requests(spec: Object) -> dict[str, Decimal]:
    """What a pod of this spec asks for: the sum over its containers, limits standing in for requests."""
    total: dict[str, Decimal] = {}
    for container in spec.get("containers") or []:
        resources = container.get("resources") or {}
        asked = (resources.get("limits") or {}) | (resources.get("requests") or {})
        for name, value in asked.items():
            total[name] = total.get(name, Decimal(0)) + quantity(value)
    return total
