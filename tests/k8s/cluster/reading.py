"""Requests as they come: their parameters and bodies, and what of them cannot be read."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, NamedTuple

from .faults import Call
from .kinds import CUSTOM, KINDS, Object, Refused
from .validation import invalid

APPLY = "application/apply-patch+yaml"
TRUE = ("true", "1")
VALIDATIONS = ("", "Ignore", "Strict", "Warn")


class Request(NamedTuple):
    """What came in."""

    method: str
    path: str
    query: dict[str, str]
    content_type: str = ""
    body: bytes = b""
    agent: str = ""
    """The client's User-Agent."""


def whole(query: dict[str, str], name: str, default: int = 0) -> int:
    """A parameter that is a number. Raises Refused 400."""
    value = query.get(name) or str(default)
    if not value.isdecimal():
        raise Refused(400, "BadRequest", f'{name}: strconv.ParseInt: parsing "{value}": invalid syntax')
    return int(value)


def check_options(request: Request) -> None:
    """Raises Refused 422 for an option of a write that none has."""
    query, patch = request.query, request.method == "PATCH"
    of = {"POST": "Create", "PUT": "Update", "PATCH": "Patch"}.get(request.method)
    manager, problems = query.get("fieldManager", ""), list[tuple[str, str]]()
    if query.get("dryRun", "All") not in ("", "All"):
        problems.append(("dryRun", f'Unsupported value: ["{query["dryRun"]}"]: supported values: "All"'))
    if query.get("fieldValidation", "") not in VALIDATIONS:
        supported = ", ".join(f'"{v}"' for v in VALIDATIONS)
        problems.append(
            ("fieldValidation", f'Unsupported value: "{query["fieldValidation"]}": supported values: {supported}')
        )
    if len(manager.encode()) > 128:
        problems.append(("fieldManager", "Too long: may not be more than 128 bytes"))
    if not manager.isprintable():
        problems.append(("fieldManager", f"Invalid value: {json.dumps(manager)}: invalid character"))
    if patch and request.content_type == APPLY and not manager:
        problems.append(("fieldManager", "Required value: is required for apply patch"))
    if patch and request.content_type != APPLY and query.get("force"):
        problems.append(("force", "Forbidden: may not be specified for non-apply patch"))
    if of and problems:
        raise invalid(f"{of}Options.meta.k8s.io", "", problems)


def parsed(request: Request) -> Any:
    """The body. Raises Refused 400, 415."""
    if request.content_type in (APPLY, "application/yaml"):
        import yaml

        try:
            if is_strict(request.query):
                with suppress(json.JSONDecodeError):  # YAML that is no JSON is not looked at
                    json.loads(request.body, object_pairs_hook=_once)
            value = yaml.safe_load(request.body)
        except Twice as twice:
            text = f'error strict decoding YAML: yaml: unmarshal errors: key "{twice}" already set in map'
            raise Refused(400, "BadRequest", text) from twice
        except yaml.YAMLError as error:
            raise Refused(400, "BadRequest", f"error decoding YAML: {error}") from error
    elif request.content_type in ("", "application/json") or request.content_type.endswith("-patch+json"):
        try:
            value = json.loads(request.body, object_pairs_hook=_once if is_strict(request.query) else None)
        except Twice as twice:
            text = f'strict decoding error: duplicate field "{twice}"'
            if request.method == "PATCH":
                raise invalid("", "", [("patch", f"Invalid value: {text}")]) from twice
            raise Refused(400, "BadRequest", text) from twice
        except ValueError as error:
            raise Refused(400, "BadRequest", f"the object provided is unrecognized: {error}") from error
    else:
        text = "the body of the request was in an unknown format - accepted media types include: application/json"
        raise Refused(415, "UnsupportedMediaType", text)
    if not isinstance(value, dict) and request.content_type != "application/json-patch+json":
        raise Refused(400, "BadRequest", "couldn't get version/kind; the object provided is no mapping")
    if isinstance(value, dict):
        check_shape(value)
    return value


class Twice(ValueError):
    """A key that a mapping has twice."""


def _once(pairs: list[tuple[str, Any]]) -> Object:
    if again := [key for at, (key, _) in enumerate(pairs) if any(key == other for other, _ in pairs[:at])]:
        raise Twice(again[0])
    return dict(pairs)


def check_shape(obj: Object) -> None:
    """Raises Refused 400 where what the server itself looks into is no mapping or no list."""
    wrong = [part for part in ("metadata", "spec", "status") if not isinstance(obj.get(part), dict | None)]
    if isinstance(meta := obj.get("metadata"), dict):
        kinds = dict.fromkeys(("labels", "annotations"), dict) | {"finalizers": list, "name": str, "namespace": str}
        wrong += [f"metadata.{part}" for part, kind in kinds.items() if not isinstance(meta.get(part), kind | None)]
    if wrong:
        raise Refused(400, "BadRequest", f"json: cannot unmarshal {wrong[0]} into Go struct field")


def same_kind(kind: str, obj: Object, required: bool = False) -> None:
    """Complete what an object says of its kind. Raises Refused 400 where it says another, 422 for the kind of a custom
    resource; a custom resource must say it."""
    of = KINDS[kind]
    got = (obj.get("apiVersion"), obj.get("kind"))
    absent = not required and got == (None, None) and kind not in CUSTOM
    if kind in CUSTOM and not required and got[0] == of.api_version and got[1] not in (None, of.kind):
        other = f"{got[1]}.{of.group}"
        raise invalid(other, "", [("kind", f"Invalid value: {json.dumps(got[1])}: must be {of.kind}")])
    if got != (of.api_version, of.kind) and not absent:
        text = f"does not match the expected ({of.api_version}, {of.kind})"
        raise Refused(400, "BadRequest", f"the API version in the data ({got[0]}, {got[1]}) {text}")
    obj |= {"apiVersion": of.api_version, "kind": of.kind}


def named(obj: Object, call: Call) -> None:
    """Raises Refused 400 unless the object says the name, and no other namespace, of the path."""
    meta = obj.get("metadata") or {}
    name, namespace = meta.get("name"), meta.get("namespace")
    if not name:
        text = f"the name of the object ({call.name} based on URL) was undeterminable: name must be provided"
        raise Refused(400, "BadRequest", text)
    if name != call.name:
        text = f"the name of the object ({name}) does not match the name on the URL ({call.name})"
        raise Refused(400, "BadRequest", text)
    if namespace and call.namespace and namespace != call.namespace:
        text = "the namespace of the provided object does not match the namespace sent on the request"
        raise Refused(400, "BadRequest", text)


def is_strict(query: dict[str, str]) -> bool:
    """Whether an unknown field is refused."""
    return query.get("fieldValidation") == "Strict"


def warns(query: dict[str, str]) -> bool:
    """Whether an unknown field that is dropped is told."""
    return query.get("fieldValidation") != "Ignore"


def is_dry(query: dict[str, str]) -> bool:
    """Whether nothing is to be stored."""
    return query.get("dryRun") == "All"


def writer(request: Request) -> str:
    """Who writes, where the request must not say."""
    return request.query.get("fieldManager") or request.agent.partition("/")[0] or "unknown"
