"""What a write makes of an object before it is stored: the server's own metadata, what stays as it was, refusals."""

from __future__ import annotations

import secrets
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from . import validation
from .kinds import KINDS, Object, Refused

T = TypeVar("T")
KEEPS_STATUS = {"Node", "Namespace", "PersistentVolume", "Event"}
"""Of these a status that is sent at the creation stays; of all others it goes."""
FIXED = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "name",
    "namespace",
)
HOLDS = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}
"""The finalizer of a propagation policy."""


def copied(value: T) -> T:
    """A deep copy of JSON."""
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items()}  # type: ignore[return-value]
    return [copied(v) for v in value] if isinstance(value, list) else value  # type: ignore[return-value]


def patched(target: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copied(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = patched(result.get(key), value)
    return result


def without_nulls(value: Any) -> Any:
    """JSON without the keys of value null."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def now(later_s: float = 0) -> str:
    """RFC 3339 in whole seconds, as `metav1.Time`."""
    return (datetime.now(UTC) + timedelta(seconds=later_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def refused(kind: str, name: str, code: int, reason: str, text: str) -> Refused:
    """The refusal of one object, in the API's words."""
    of = KINDS[kind]
    if reason == "Conflict":
        text = f'Operation cannot be fulfilled on {of.resource} "{name}": {text}'
    else:
        text = f'{of.resource} "{name}" {text}'
    return Refused(code, reason, text, {"name": name, "kind": of.plural} | ({"group": of.group} if of.group else {}))


def missing(kind: str, name: str) -> Refused:
    """404."""
    return refused(kind, name, 404, "NotFound", "not found")


def unmet(kind: str, name: str, field: str, wanted: str, found: str) -> Refused:
    """409 for a precondition of a deletion."""
    text = f"the {field} in the precondition ({wanted}) does not match the {field} in record ({found})"
    return refused(kind, name, 409, "Conflict", text)


def modified(kind: str, name: str) -> Refused:
    """409 for a resourceVersion that is no longer current."""
    text = "the object has been modified; please apply your changes to the latest version and try again"
    return refused(kind, name, 409, "Conflict", text)


def fresh(kind: str, namespace: str, obj: Object) -> Object:
    """As it is stored when it is created. Raises Refused 400, 422."""
    of, new = KINDS[kind], copied(obj)
    meta = new.setdefault("metadata", {})
    if not of.namespaced:
        meta.pop("namespace", None)
    elif meta.setdefault("namespace", namespace) != namespace:
        text = "the namespace of the provided object does not match the namespace sent on the request"
        raise Refused(400, "BadRequest", text)
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = meta["generateName"] + secrets.token_hex(3)[:5]
    if not meta.get("name"):
        raise validation.invalid(kind, "", [("metadata.name", "Required value: name or generateName is required")])
    new |= {"apiVersion": of.api_version, "kind": of.kind}
    validation.check_metadata(kind, new)
    for key in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields"):
        meta.pop(key, None)
    meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
    if kind not in KEEPS_STATUS:
        new.pop("status", None)
    if kind in ("Pod", "PersistentVolumeClaim"):
        new["status"] = {"phase": "Pending"}
    if kind == "Namespace":
        new["status"] = {"phase": "Active"}
    return new


def succeeding(kind: str, old: Object, new: Object, subresource: str) -> Object:
    """`new` with what a client may not change put back. Raises Refused 409, 422, 403."""
    meta, was, name = new["metadata"], old["metadata"], old["metadata"]["name"]
    if meta.get("resourceVersion") and meta["resourceVersion"] != was["resourceVersion"]:
        raise modified(kind, name)
    if meta.get("uid") and meta["uid"] != was["uid"]:
        text = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {was['uid']}"
        raise refused(kind, name, 409, "Conflict", text)
    owned = meta.get("managedFields", [])
    if subresource:
        new = copied(old) | {subresource: new.get(subresource, {})}
    elif "status" in old:
        new["status"] = copied(old["status"])
    elif kind not in KEEPS_STATUS:
        new.pop("status", None)
    meta = new["metadata"]
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        meta.pop(key, None)
    meta |= {k: was[k] for k in FIXED if k in was} | {"resourceVersion": was["resourceVersion"], "managedFields": owned}
    added = set(meta.get("finalizers") or []) - set(was.get("finalizers") or [])
    if added and was.get("deletionTimestamp"):
        text = f"Forbidden: no new finalizers can be added if the object is being deleted, found {sorted(added)}"
        raise validation.invalid(kind, name, [("metadata.finalizers", text)])
    new |= {"apiVersion": old["apiVersion"], "kind": old["kind"]}
    validation.check_metadata(kind, new)
    if not subresource:
        validation.check_change(kind, old, new)
    was_rest, rest = ({k: v for k, v in o.items() if k not in ("metadata", "status")} for o in (old, new))
    meta["generation"] = was.get("generation", 1) + (was_rest != rest)
    return new


def ending(kind: str, obj: Object, propagation: str, grace_s: int | None) -> Object:
    """The object with the marks of a deletion; one that nothing holds (no finalizer, no grace) is to be removed."""
    new = copied(obj)
    meta = new["metadata"]
    finalizers = [f for f in meta.pop("finalizers", []) if f not in HOLDS.values()]
    finalizers += [HOLDS[propagation]] if propagation in HOLDS else []
    meta |= {"finalizers": finalizers} if finalizers else {}
    grace, left = _grace(kind, obj, grace_s), meta.get("deletionGracePeriodSeconds", 0)
    if "deletionTimestamp" not in meta or grace < left:
        meta |= {"deletionTimestamp": now(grace), "deletionGracePeriodSeconds": grace}
        meta["generation"] = meta.get("generation", 0) + 1
    if kind == "Namespace":
        new["status"] = {"phase": "Terminating"}
    return new


def _grace(kind: str, obj: Object, grace_s: int | None) -> int:
    """Seconds that a deletion leaves it: only a pod that may be running has any."""
    spec, phase = obj.get("spec") or {}, (obj.get("status") or {}).get("phase")
    if kind != "Pod" or not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    return int(spec.get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s)
