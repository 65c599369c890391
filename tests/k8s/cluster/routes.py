"""From a request to the storage: paths, verbs, parameters and bodies of the API; knows nothing of sockets."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Event
from typing import Any
from urllib.parse import unquote

from . import podcalls
from .access import anybody
from .faults import Call
from .kinds import CUSTOM, KINDS, NoSuchPath, Object, Refused, built_in, kind_at
from .patches import check_type, patch_of
from .reading import (
    APPLY,
    TRUE,
    Request,
    check_options,
    check_shape,
    is_dry,
    is_strict,
    named,
    parsed,
    same_kind,
    warns,
    whole,
    writer,
)
from .scale import SCALED, rescaled, scale_of
from .selectors import by_fields, by_labels
from .storage import Storage
from .strictness import check_typed, checked
from .validation import invalid
from .writes import unmet, without_nulls

NOT_FOUND = "the server could not find the requested resource"
Admit = Callable[[str, Call, Object | None, Object | None], None]
"""Of the operation, the call, the new object and the old. Raises Refused."""
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass
class Answer:
    """What goes out: a body, or lines as they come."""

    code: int
    body: Any = None
    stream: Iterator[bytes] | None = None
    content_type: str = "application/json"
    warnings: list[str] = field(default_factory=list)


def call_of(request: Request) -> Call:
    """What is asked for. Raises Refused 404 for an unknown path, 405 for a method that it has not."""
    parts = [unquote(part) for part in request.path.split("/") if part]
    core = parts[:1] == ["api"]
    prefix = 2 if core else 3
    api_version, rest = "/".join(parts[1:prefix]), parts[prefix:]
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    kind = kind_at(api_version, rest[0]) if rest and parts[0] in ("api", "apis") else ""
    if not kind or len(rest) > 3:
        raise Refused(404, "NotFound", NOT_FOUND) if built_in(api_version) else NoSuchPath()
    name, subresource = (*rest[1:], "", "")[:2]
    watching = request.query.get("watch") in TRUE
    verb = (
        ("get" if name else "watch" if watching else "list")
        if request.method == "GET"
        else VERBS.get(request.method, "")
    )
    if verb == "delete" and not name:
        verb = "deletecollection"
    if not verb or (verb == "create" and name and not subresource) or (verb in ("update", "patch") and not name):
        raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    misplaced = KINDS[kind].namespaced and not namespace and verb not in ("list", "watch")
    if misplaced or (namespace and not KINDS[kind].namespaced):
        raise Refused(404, "NotFound", NOT_FOUND) if built_in(api_version) else NoSuchPath()
    return Call(verb, kind, namespace, name, subresource)


@dataclass
class Routes:
    """The API over one storage."""

    storage: Storage
    logs: podcalls.Logs | None = None

    def answer(self, request: Request, call: Call, stop: Event, admit: Admit = anybody) -> Answer:
        """Do it. Raises Refused; `stop` ends a watch or a followed log, `admit` is asked before a write is stored."""
        query, storage = request.query, self.storage
        check_options(request)
        match call.verb, call.subresource:
            case "get", "log":
                lines = podcalls.log(storage, self.logs, call.namespace, call.name, query, stop)
                return Answer(200, stream=lines, content_type="text/plain")
            case "get", "" | "status":
                return Answer(200, storage.get(call.kind, call.namespace, call.name))
            case "get", "scale" if call.kind in SCALED:
                return Answer(200, scale_of(storage.get(call.kind, call.namespace, call.name)))
            case "patch", "scale" if call.kind in SCALED:
                what = request.content_type, parsed(request), writer(request)
                return Answer(200, rescaled(storage, call.namespace, call.name, *what))
            case "list", "":
                return Answer(200, self._list(call, query))
            case "watch", "":
                return Answer(200, stream=self._watch(call, query, stop))
            case "create", "":
                return self._create(call, request, admit)
            case "create", "eviction" if call.kind == "Pod":
                options = parsed(request).get("deleteOptions") or {}
                return Answer(201, podcalls.evict(storage, call.namespace, call.name, options))
            case "create", "binding" if call.kind == "Pod":
                return Answer(201, podcalls.bind(storage, call.namespace, call.name, parsed(request)))
            case "update", "" | "status":
                return self._update(call, request, admit)
            case "patch", "" | "status":
                return self._patch(call, request, admit)
            case "delete", "":
                return self._delete(call, request, admit)
            case "deletecollection", "":
                body = self._list(call, query)
                for item in body["items"]:
                    storage.delete(call.kind, item["metadata"].get("namespace", ""), item["metadata"]["name"])
                return Answer(200, body)
            case _, "status":
                text = f'{call.verb} is not supported on resources of kind "{KINDS[call.kind].resource}"'
                raise Refused(405, "MethodNotAllowed", text)
            case _:
                raise Refused(404, "NotFound", NOT_FOUND)

    def _list(self, call: Call, query: dict[str, str]) -> Object:
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        items, version = self.storage.list(call.kind, call.namespace, labels, fields)
        asked = whole(query, "resourceVersion")
        if asked and query.get("continue"):
            text = "specifying resource version is not allowed when using continue"
            raise Refused(400, "BadRequest", text)
        if asked > int(version):
            text = f"Timeout: Too large resource version: {asked}, current: {version}"
            raise Refused(504, "Timeout", text, {"retryAfterSeconds": 1})
        meta: Object = {"resourceVersion": version} | ({"continue": ""} if call.kind in CUSTOM else {})
        limit = whole(query, "limit")
        if token := query.get("continue"):
            version, after = _token(token)
            if int(version) < self.storage.forgotten:
                text = "The provided continue parameter is too old to display a consistent list result."
                raise Refused(410, "Expired", text)
            meta["resourceVersion"] = version
            items = [i for i in items if _place(i) > after]
        if limit and len(items) > limit:
            last = json.dumps([version, _place(items[limit - 1])]).encode()
            meta |= {"continue": base64.urlsafe_b64encode(last).decode()}
            # The API server doesn't count what a selector would have to look at.
            meta |= {} if labels or fields else {"remainingItemCount": len(items) - limit}
            items = items[:limit]
        of = KINDS[call.kind]
        if call.kind not in CUSTOM:
            # The items of a typed list name neither kind nor version.
            items = [{k: v for k, v in i.items() if k not in ("kind", "apiVersion")} for i in items]
        return {"kind": f"{of.kind}List", "apiVersion": of.api_version, "metadata": meta, "items": items}

    def _watch(self, call: Call, query: dict[str, str], stop: Event) -> Iterator[bytes]:
        bookmarks = query.get("allowWatchBookmarks") in TRUE
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        since = query.get("resourceVersion", "")
        by_labels(labels), by_fields(fields, call.kind)  # refused before the stream begins
        try:
            events = self.storage.watch(call.kind, call.namespace, since, labels, fields, stop)
        except Refused as refusal:
            events = iter([("ERROR", refusal.status())])
        return (
            json.dumps({"type": event, "object": obj}).encode() + b"\n"
            for event, obj in _with_errors(events)
            if event != "BOOKMARK" or bookmarks
        )

    def _create(self, call: Call, request: Request, admit: Admit) -> Answer:
        obj = parsed(request)
        same_kind(call.kind, obj)
        meta = obj["metadata"] = obj.get("metadata") or {}
        if KINDS[call.kind].namespaced:
            # A namespace that isn't there is told before what is wrong in the object.
            self.storage.get("Namespace", "", call.namespace)
            meta.setdefault("namespace", call.namespace)
        obj, warnings = checked(call.kind, without_nulls(obj), is_strict(request.query), "create")
        admit("CREATE", call, obj, None)
        result = self.storage.create(call.kind, call.namespace, obj, writer(request), is_dry(request.query))
        return Answer(201, result, warnings=warnings if warns(request.query) else [])

    def _update(self, call: Call, request: Request, admit: Admit) -> Answer:
        obj = parsed(request)
        same_kind(call.kind, obj)
        named(obj, call)
        if call.kind in CUSTOM and not obj["metadata"].get("resourceVersion"):
            text = "Invalid value: 0: must be specified for an update"
            raise invalid(call.kind, call.name, [("metadata.resourceVersion", text)])
        obj, warnings = checked(call.kind, without_nulls(obj), is_strict(request.query), "update", call.subresource)
        dry, manager = is_dry(request.query), writer(request)
        admit("UPDATE", call, obj, None)
        new = self.storage.update(call.kind, call.namespace, obj, call.subresource, manager, dry)
        return Answer(200, new, warnings=warnings if warns(request.query) else [])

    def _patch(self, call: Call, request: Request, admit: Admit) -> Answer:
        if request.content_type == APPLY:
            return self._apply(call, request, admit)
        storage = self.storage
        check_type(call.kind, request.content_type)
        patch = parsed(request)
        with storage.changed:
            old = storage.get(call.kind, call.namespace, call.name)
            new = patch_of(call.kind, request.content_type, old, patch)
            check_shape(new)
            named(new, call)
            same_kind(call.kind, new)
            new, warnings = checked(call.kind, without_nulls(new), is_strict(request.query), "patch", call.subresource)
            dry, manager = is_dry(request.query), writer(request)
            new = storage.update(call.kind, call.namespace, new, call.subresource, manager, dry)
        return Answer(200, new, warnings=warnings if warns(request.query) else [])

    def _apply(self, call: Call, request: Request, admit: Admit) -> Answer:
        manager, force = request.query.get("fieldManager", ""), request.query.get("force") in TRUE
        obj = parsed(request)
        same_kind(call.kind, obj, required=True)
        named(obj, call)
        if (obj.get("metadata") or {}).get("managedFields") is not None:
            raise Refused(400, "BadRequest", "metadata.managedFields must be nil")
        check_typed(call.kind, obj)
        how = (call.kind, call.namespace, call.name, obj, manager, force)
        with self.storage.changed:
            result, absent = self.storage.apply(*how, dry_run=True, subresource=call.subresource)
            if not call.subresource:
                checked(call.kind, result, is_strict(request.query), "apply")
            admit("CREATE" if absent else "UPDATE", call, result, None)
            dry = is_dry(request.query)
            built, created = self.storage.apply(*how, dry_run=dry, subresource=call.subresource)
        return Answer(201 if created else 200, built)

    def _delete(self, call: Call, request: Request, admit: Admit) -> Answer:
        options = parsed(request) if request.body else {}
        if options.get("kind", "DeleteOptions") != "DeleteOptions":
            raise Refused(400, "BadRequest", f'no kind "{options["kind"]}" is registered for version "v1"')
        asked = request.query | {k: str(v) for k, v in options.items()}
        grace = whole(asked, "gracePeriodSeconds") if "gracePeriodSeconds" in asked else None
        preconditions, dry = (
            options.get("preconditions") or {},
            is_dry(request.query) or options.get("dryRun") == ["All"],
        )
        where = (call.kind, call.namespace, call.name)
        with self.storage.changed:
            old = self.storage.get(*where)
            version = old["metadata"]["resourceVersion"]
            if preconditions.get("resourceVersion", version) != version:
                raise unmet(call.kind, call.name, "ResourceVersion", preconditions["resourceVersion"], version)
            policy, uid = asked.get("propagationPolicy") or "Background", preconditions.get("uid", "")
            if policy not in ("Background", "Foreground", "Orphan"):
                text = f'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "{policy}"'
                raise Refused(422, "Invalid", text)
            admit("DELETE", call, None, old)
            gone = old if dry else self.storage.delete(*where, policy, grace, uid)
        if call.kind == "Pod" or gone["metadata"].get("finalizers") or call.kind == "Namespace":
            return Answer(200, gone)
        of = KINDS[call.kind]
        details = {"name": call.name, "group": of.group, "kind": of.plural, "uid": old["metadata"]["uid"]}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return Answer(200, status)


def _with_errors(events: Iterator[tuple[str, Object]]) -> Iterator[tuple[str, Object]]:
    # The stream has begun with 200: an expired version is an event of it.
    try:
        yield from events
    except Refused as refusal:
        yield "ERROR", refusal.status()


def _place(obj: Object) -> list[str]:
    return [obj["metadata"].get("namespace", ""), obj["metadata"]["name"]]


def _token(token: str) -> tuple[str, list[str]]:
    try:
        version, after = json.loads(base64.urlsafe_b64decode(token))
    except ValueError as error:
        raise Refused(400, "BadRequest", f"continue key is not valid: {error}") from error
    return version, after
