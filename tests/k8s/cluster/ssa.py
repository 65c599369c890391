"""Server-side apply: which manager owns which field, conflicts, and what goes when a manager no longer sends it.

A field is a path of `f:name`, `k:{keys of a list's item}` and `v:member of a set`, as in `managedFields`. The keys of
lists are known by the list's name instead of by the OpenAPI schema.
"""

from __future__ import annotations

import json
from typing import Any

from .kinds import Object, Refused

Field = tuple[str, ...]
Fields = dict[Field, Any]
Owner = tuple[str, str, str]
"""Manager, operation (Apply or Update), subresource."""

KEYS: dict[str, tuple[str, ...]] = dict.fromkeys(
    [
        "containers",
        "initContainers",
        "ephemeralContainers",
        "env",
        "volumes",
        "imagePullSecrets",
        "resourceClaims",
        "replicatedJobs",
    ],
    ("name",),
) | {
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "conditions": ("type",),
    "ownerReferences": ("uid",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
SETS = {"finalizers"}
ATOMIC = {
    "selector",
    "nodeSelector",
    "fieldRef",
    "resourceFieldRef",
    "secretKeyRef",
    "configMapKeyRef",
    "nodeSelectorTerms",
}
UNOWNED = {
    *(["name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"]),
    *(["deletionGracePeriodSeconds", "managedFields", "selfLink", "generateName"]),
}
ITEM = object()
"""The value of the path of a list's item: that it is there."""


def keys_of(path: Field, items: list[Any]) -> tuple[str, ...]:
    """The keys by which the items of this list are merged; none: the list is one value."""
    name = path[-1][2:] if path else ""
    keys = KEYS.get(name, ())
    if name == "ports" and all(isinstance(i, dict) and "containerPort" in i for i in items):
        keys = ("containerPort", "protocol")
    if path == ("f:spec", "f:ports"):
        keys = ("port", "protocol")
    known = all(isinstance(i, dict) and all(k in i or k == "protocol" for k in keys) for i in items)
    return keys if known else ()


def key_of(keys: tuple[str, ...], item: Object) -> str:
    return "k:" + json.dumps({k: item.get(k, "TCP") for k in keys}, sort_keys=True, separators=(",", ":"))


def fields(obj: Object) -> Fields:
    """The fields that can be owned, with their values."""
    out: Fields = {}
    for name, value in obj.items():
        if name == "metadata":
            for key, part in value.items():
                if key not in UNOWNED:
                    _walk(part, ("f:metadata", f"f:{key}"), out)
        elif name not in ("apiVersion", "kind"):
            _walk(value, (f"f:{name}",), out)
    return out


def _walk(value: Any, path: Field, out: Fields) -> None:
    name = path[-1][2:]
    if isinstance(value, dict) and value and name not in ATOMIC:
        for key, part in value.items():
            _walk(part, (*path, f"f:{key}"), out)
    elif isinstance(value, list) and value and name in SETS:
        out.update({(*path, f"v:{json.dumps(v)}"): v for v in value})
    elif isinstance(value, list) and value and (keys := keys_of(path, value)):
        for item in value:
            at = (*path, key_of(keys, item))
            out[at] = ITEM
            for key, part in item.items():
                _walk(part, (*at, f"f:{key}"), out)
    else:
        out[path] = value


def _merged(live: Any, new: Any, path: Field) -> Any:
    name = path[-1][2:] if path else ""
    if isinstance(live, dict) and isinstance(new, dict) and name not in ATOMIC:
        return live | {k: _merged(live[k], v, (*path, f"f:{k}")) if k in live else v for k, v in new.items()}
    if isinstance(live, list) and isinstance(new, list):
        if name in SETS:
            return live + [v for v in new if v not in live]
        keys = keys_of(path, [*live, *new])
        if keys and live and new:
            old, sent = ({key_of(keys, i): i for i in items} for items in (live, new))
            both = {k: _merged(old[k], i, (*path, k)) if k in old else i for k, i in sent.items()}
            return [both.get(key, old.get(key)) for key in _order([*old], [*sent])]
    return new


def _order(old: list[str], sent: list[str]) -> list[str]:
    """That of what is sent; what only was there keeps its place between."""
    order, left = list[str](), old
    for key in sent:
        while left and left[0] not in sent:
            order.append(left[0])
            left = left[1:]
        order.append(key)
        while left and left[0] in order:
            left = left[1:]
    return order + [key for key in left if key not in sent]


def _pruned(value: Any, path: Field, gone: set[Field], kept: set[Field]) -> Any:
    """Without the fields `gone` and what is empty after them; ITEM marks a value that goes as a whole."""
    if path in gone:
        if not isinstance(value, (dict, list)) or not any(k[: len(path)] == path for k in kept):
            return ITEM
        gone = gone - {path}
    if not any(g[: len(path)] == path for g in gone):
        return value
    if isinstance(value, dict):
        parts = {k: _pruned(v, (*path, f"f:{k}"), gone, kept) for k, v in value.items()}
        left = {k: v for k, v in parts.items() if v is not ITEM}
        return left if left or not value or not path else ITEM
    if isinstance(value, list):
        if path and path[-1][2:] in SETS:
            left = [v for v in value if (*path, f"v:{json.dumps(v)}") not in gone]
        else:
            keys = keys_of(path, value)
            parts = [_pruned(i, (*path, key_of(keys, i)), gone, kept) for i in value] if keys else value
            left = [i for i in parts if i is not ITEM]
        return left if left else ITEM
    return value


def told(path: Field) -> str:
    """As messages write it: `.spec.containers[name="trainer"].image`."""
    out = ""
    for part in path:
        if part.startswith("k:"):
            out += "[" + ",".join(f"{k}={json.dumps(v)}" for k, v in json.loads(part[2:]).items()) + "]"
        else:
            out += f"[={part[2:]}]" if part.startswith("v:") else f".{part[2:]}"
    return out


def owners(obj: Object) -> dict[Owner, set[Field]]:
    """Read from `metadata.managedFields`."""

    def paths(node: Object, path: Field) -> set[Field]:
        if not node:
            return {path}
        return {p for k, v in node.items() for p in ({path} if k == "." else paths(v, (*path, k)))}

    entries = obj.get("metadata", {}).get("managedFields") or []
    return {(e["manager"], e["operation"], e.get("subresource", "")): paths(e["fieldsV1"], ()) for e in entries}


def record(obj: Object, held: dict[Owner, set[Field]], now: str) -> None:
    """Write `metadata.managedFields`; an entry that is as it was keeps its time."""
    before = owners(obj)
    times = {
        (e["manager"], e["operation"], e.get("subresource", "")): e["time"]
        for e in obj["metadata"].get("managedFields") or []
    }
    entries: list[Object] = []
    for owner, paths in held.items():
        tree: Object = {}
        for path in sorted(paths):
            node = tree
            for part in path:
                node = node.setdefault(part, {})
            if path[-1].startswith("k:"):
                node["."] = {}
        entry = {"manager": owner[0], "operation": owner[1], "apiVersion": obj["apiVersion"]}
        entry |= {
            "time": times[owner] if before.get(owner) == paths else now,
            "fieldsType": "FieldsV1",
            "fieldsV1": tree,
        }
        entries.append(entry | ({"subresource": owner[2]} if owner[2] else {}))
    obj["metadata"]["managedFields"] = [e for e in entries if e["fieldsV1"]]


def updated(old: Object | None, new: Object, owner: Owner, now: str) -> None:
    """Record in `new` that this owner wrote what differs from `old`: a plain write takes fields from others."""
    was, now_is = fields(old or {}), fields(new)
    changed = {p for p, v in now_is.items() if p not in was or was[p] != v}
    if old is not None and not changed and was.keys() == now_is.keys():
        new["metadata"]["managedFields"] = old["metadata"].get("managedFields", [])
        return
    held = {o: paths & now_is.keys() - changed for o, paths in owners(old or {}).items()}
    held[owner] = held.get(owner, set()) | changed
    new["metadata"]["managedFields"] = (old or {}).get("metadata", {}).get("managedFields", [])
    record(new, held, now)


def applied(live: Object, sent: Object, owner: Owner, force: bool, now: str) -> Object:
    """The object after an apply ({} with its metadata for one that isn't there yet). Raises Refused 409 for fields that
    another manager holds with another value."""
    mine, held = fields(sent), owners(live)
    merged = _merged(live, sent, ())
    before, after = fields(live), fields(merged)
    changed = {p for p in after if p not in before or before[p] != after[p]} | (before.keys() - after.keys())
    others = {o: paths for o, paths in held.items() if o != owner}
    clashes = {o: paths & changed for o, paths in others.items() if paths & changed}
    if clashes and not force:
        raise _conflict(clashes, live["apiVersion"])
    others = {o: paths - changed for o, paths in others.items()}
    kept = {p for paths in others.values() for p in paths} | mine.keys()
    gone = held.get(owner, set()) - kept
    result = _pruned(merged, (), gone, kept) if gone else merged
    result["metadata"]["managedFields"] = live["metadata"].get("managedFields", [])
    record(result, dict(({owner: set(mine)} | others).items()), now)
    return result


def _conflict(clashes: dict[Owner, set[Field]], api_version: str) -> Refused:
    count, parts, causes = sum(len(p) for p in clashes.values()), [], []
    for (manager, operation, subresource), paths in sorted(clashes.items()):
        using = f'"{manager}"' + (f' with subresource "{subresource}"' if subresource else "")
        using += f" using {api_version}" if operation == "Update" else ""
        # Of a struct its own fields come before what is below others.
        lines = [told(p) for p in sorted(paths, key=lambda p: [(i + 1 < len(p), part) for i, part in enumerate(p)])]
        causes += [{"reason": "FieldManagerConflict", "message": f"conflict with {using}", "field": t} for t in lines]
        parts.append(
            f"conflict{'s' * (count > 1)} with {using}:"
            + (f" {lines[0]}" if count == 1 else "\n- " + "\n- ".join(lines))
        )
    message = f"Apply failed with {count} conflict{'s' * (count > 1)}: " + "\n".join(parts)
    return Refused(409, "Conflict", message, {"causes": causes})
