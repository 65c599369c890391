"""The objects of the tests' API server: versions, apply with owners of fields, deletion with finalizers, a history.

Owns what is stored and who is told. HTTP is in `server`, what a write makes of an object in `writes`; dependants are
collected by the garbage collector among the controllers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from . import ssa, writes
from .kinds import CUSTOM, KINDS, Kind, Object, Refused, kind_of
from .selectors import Matches, by_fields, by_labels
from .writes import FIXED, copied, now, patched

__all__ = ["KINDS", "Kind", "Object", "Refused", "Storage", "kind_of"]

Key = tuple[str, str, str]
"""Kind, namespace ("" for what has none), name."""


class Event(NamedTuple):
    """One change: what an object became and what it was."""

    version: int
    kind: str
    now: Object | None
    before: Object | None


@dataclass
class Storage:
    """Everything is deep-copied in and out. Every method may be called from any thread."""

    history: int = 1000
    """Events kept for watches; an older resourceVersion is answered 410."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    """Notified after every change: controllers wait on it."""
    _objects: dict[Key, Object] = field(default_factory=dict)
    _events: deque[Event] = field(default_factory=deque)
    _version: int = 1
    forgotten: int = 0
    """The version of the newest event that is no longer kept."""

    def __post_init__(self) -> None:
        for name in ("default", "kube-system"):
            self.create("Namespace", "", {"metadata": {"name": name}}, "kube-apiserver")

    @property
    def version(self) -> str:
        """Of the newest change."""
        return str(self._version)

    def get(self, kind: str, namespace: str, name: str) -> Object:
        """Raises Refused 404."""
        with self.changed:
            return copied(self._at(_key(kind, namespace, name)))

    def list(self, kind: str, namespace: str = "", labels: str = "", fields: str = "") -> tuple[list[Object], str]:
        """Objects (of all namespaces for "") and the resourceVersion; `labels`, `fields`: selectors as in the API."""
        wanted = _selected(kind, namespace, labels, fields)
        with self.changed:
            matches = [copied(o) for k, o in sorted(self._objects.items()) if k[0] == kind and wanted(o)]
            return matches, str(self._version)

    def create(self, kind: str, namespace: str, obj: Object, manager: str = "test", dry_run: bool = False) -> Object:
        """Raises Refused 409 AlreadyExists, 404 for the namespace, 422 Invalid. generateName works. Sets uid,
        creationTimestamp, resourceVersion, generation."""
        with self.changed:
            new = self._fresh(kind, namespace, obj)
            if _key(kind, namespace, new["metadata"]["name"]) in self._objects:
                raise writes.refused(kind, new["metadata"]["name"], 409, "AlreadyExists", "already exists")
            ssa.updated(None, new, (manager, "Update", ""), now())
            return copied(new if dry_run else self._store(kind, None, new))

    def update(
        self,
        kind: str,
        namespace: str,
        obj: Object,
        subresource: str = "",
        manager: str = "test",
        dry_run: bool = False,
    ) -> Object:
        """Replace; with metadata.resourceVersion 409 Conflict unless it is current. subresource "status" changes the
        status alone, "" everything but the status. An object whose last finalizer goes while it is being deleted is
        removed."""
        with self.changed:
            old = self._at(_key(kind, namespace, obj["metadata"]["name"]))
            new = writes.succeeding(kind, old, copied(obj), subresource)
            ssa.updated(old, new, (manager, "Update", subresource), now())
            return copied(self._replace(kind, old, new, dry_run))

    def merge(
        self,
        kind: str,
        namespace: str,
        name: str,
        patch: Object,
        subresource: str = "",
        manager: str = "test",
        dry_run: bool = False,
    ) -> Object:
        """JSON merge patch (RFC 7386)."""
        with self.changed:
            old = self._at(_key(kind, namespace, name))
            return self.update(kind, namespace, patched(old, patch), subresource, manager, dry_run)

    def apply(
        self,
        kind: str,
        namespace: str,
        name: str,
        obj: Object,
        manager: str,
        force: bool = False,
        dry_run: bool = False,
        subresource: str = "",
    ) -> tuple[Object, bool]:
        """Server-side apply; True when it was created. Raises Refused 409 Conflict naming the other manager and the
        fields."""
        # Decoding drops the nulls of a built-in kind; what is applied of a custom resource is not decoded.
        sent = copied(obj) if kind in CUSTOM else writes.without_nulls(copied(obj))
        sent["metadata"] = meta = writes.without_nulls(sent.get("metadata") or {})
        owner = (manager, "Apply", subresource)
        # The other side of a status subresource is not this manager's, whatever it sends.
        ours = {"apiVersion", "kind", "metadata"}
        sent = {k: v for k, v in sent.items() if k in ours or (k == "status") is bool(subresource)}
        with self.changed:
            old = self._objects.get(_key(kind, namespace, name))
            if old is None:
                if subresource:
                    raise writes.missing(kind, name)
                if meta.get("uid"):
                    text = f"uid mismatch: the provided object specified uid {meta['uid']}"
                    text += ", and no existing object was found"
                    raise writes.refused(kind, name, 409, "Conflict", text)
                new = self._fresh(kind, namespace, sent | {"metadata": meta | {"name": name}})
                ssa.record(new, {owner: set(ssa.fields(sent))}, now())
                return copied(new if dry_run else self._store(kind, None, new)), True
            if meta.get("resourceVersion", old["metadata"]["resourceVersion"]) != old["metadata"]["resourceVersion"]:
                raise writes.modified(kind, name)
            for key in ("resourceVersion", "managedFields", *FIXED):
                meta.pop(key, None)
            new = ssa.applied(copied(old), sent, owner, force, now())
            new = writes.succeeding(kind, old, new, subresource)
            return copied(self._replace(kind, old, new, dry_run)), False

    def delete(
        self,
        kind: str,
        namespace: str,
        name: str,
        propagation: str = "Background",
        grace_s: int | None = None,
        uid: str = "",
    ) -> Object:
        """Sets deletionTimestamp where finalizers (also `foregroundDeletion`, for propagation Foreground) or a pod's
        grace period keep it; a pod with grace 0, or anything unkept, goes at once. `uid`: precondition, 409. Dependants
        (ownerReferences) are collected by the garbage collector among the controllers, not here."""
        with self.changed:
            old = self._at(_key(kind, namespace, name))
            if uid and uid != old["metadata"]["uid"]:
                raise writes.unmet(kind, name, "UID", uid, old["metadata"]["uid"])
            new = copied(self._replace(kind, old, writes.ending(kind, old, propagation, grace_s), dry_run=False))
            for other, space, named in [k for k in self._objects if kind == "Namespace" and k[1] == name]:
                self.delete(other, space, named)
            return new

    def watch(
        self,
        kind: str,
        namespace: str,
        since: str,
        labels: str = "",
        fields: str = "",
        stop: threading.Event | None = None,
    ) -> Iterator[tuple[str, Object]]:
        """(ADDED | MODIFIED | DELETED | BOOKMARK, object) after that resourceVersion, blocking. Raises Refused 410 Gone
        (Expired). "" or "0": first what there is, as ADDED."""
        wanted = _selected(kind, namespace, labels, fields)
        with self.changed:
            present = self.list(kind, namespace, labels, fields)[0] if since in ("", "0") else []
            if since and not since.isdecimal():
                raise Refused(400, "BadRequest", f"resourceVersion: Invalid value: {since!r}")
            seen = self._version if since in ("", "0") else int(since)
            self._still(seen)
        return self._follow(kind, wanted, present, seen, stop or threading.Event())

    def _follow(
        self, kind: str, wanted: Matches, first: list[Object], seen: int, stop: threading.Event
    ) -> Iterator[tuple[str, Object]]:
        yield from (("ADDED", o) for o in first)
        while not stop.is_set():
            with self.changed:
                # The wait ends now and then for `stop`, which notifies nobody.
                self.changed.wait_for(lambda at=seen: self._version > at or stop.is_set(), timeout=0.2)
                self._still(seen)
                news = [e for e in self._events if e.version > seen]
                seen = max(self._version, seen)
            lines = [line for e in news if e.kind == kind and (line := _line(e, wanted))]
            yield from lines
            if news and not lines:
                of = KINDS[kind]
                meta = {"resourceVersion": str(seen)}
                yield "BOOKMARK", {"kind": of.kind, "apiVersion": of.api_version, "metadata": meta}

    def _still(self, seen: int) -> None:
        if seen < self.forgotten:
            raise Refused(410, "Expired", f"too old resource version: {seen} ({self.forgotten})")

    def _at(self, key: Key) -> Object:
        if key not in self._objects:
            raise writes.missing(key[0], key[2])
        return self._objects[key]

    def _fresh(self, kind: str, namespace: str, obj: Object) -> Object:
        """As it is stored when it is created, in a namespace that takes new objects."""
        if KINDS[kind].namespaced and self._at(("Namespace", "", namespace))["metadata"].get("deletionTimestamp"):
            name = obj.get("metadata", {}).get("name", "")
            text = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise writes.refused(kind, name, 403, "Forbidden", f"is forbidden: {text}")
        return writes.fresh(kind, namespace, obj)

    def _replace(self, kind: str, old: Object, new: Object, dry_run: bool) -> Object:
        return new if dry_run or new == old else self._store(kind, old, new)

    def _store(self, kind: str, old: Object | None, new: Object) -> Object:
        """Make it so and tell those who watch."""
        meta = new["metadata"]
        key = _key(kind, meta.get("namespace", ""), meta["name"])
        gone = "deletionTimestamp" in meta and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")
        gone = gone and not (kind == "Namespace" and any(k[1] == meta["name"] for k in self._objects))
        self._version += 1
        meta["resourceVersion"] = str(self._version)
        if gone:
            del self._objects[key]
        else:
            self._objects[key] = new
        self._events.append(Event(self._version, kind, None if gone else new, new if gone else old))
        while len(self._events) > self.history:
            self.forgotten = self._events.popleft().version
        self.changed.notify_all()
        space = self._objects.get(("Namespace", "", key[1]))
        if gone and space and space["metadata"].get("deletionTimestamp"):
            self._store("Namespace", space, copied(space))
        return new


def _key(kind: str, namespace: str, name: str) -> Key:
    return kind, namespace if KINDS[kind].namespaced else "", name


def _selected(kind: str, namespace: str, labels: str, fields: str) -> Matches:
    label, fits = by_labels(labels), by_fields(fields, kind)
    space = namespace if KINDS[kind].namespaced else ""
    return lambda o: (not space or o["metadata"].get("namespace") == space) and label(o) and fits(o)


def _line(event: Event, wanted: Matches) -> tuple[str, Object] | None:
    """What a watcher is told: an object that leaves its selector is deleted for it, one that enters is added."""
    here = event.now if event.now and wanted(event.now) else None
    before = event.before if event.before and wanted(event.before) else None
    if here:
        return "MODIFIED" if before else "ADDED", copied(here)
    return ("DELETED", copied(event.now or event.before or {})) if before else None
