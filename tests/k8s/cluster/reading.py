"""Requests as they come: their parameters and bodies, and what of them cannot be read."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from .kinds import KINDS, Object, Refused

APPLY = "application/apply-patch+yaml"
TRUE = ("true", "1")


class Request(NamedTuple):
    """What came in."""

    method: str
    path: str
    query: dict[str, str]
    content_type: str = ""
    body: bytes = b""


def whole(query: dict[str, str], name: str, default: int = 0) -> int:
    """A parameter that is a number. Raises Refused 400."""
    value = query.get(name) or str(default)
    if not value.isdecimal():
        raise Refused(400, "BadRequest", f'{name}: strconv.ParseInt: parsing "{value}": invalid syntax')
    return int(value)


def parsed(request: Request) -> Any:
    """The body. Raises Refused 400, 415."""
    if request.content_type in (APPLY, "application/yaml"):
        import yaml

        try:
            value = yaml.safe_load(request.body)
        except yaml.YAMLError as error:
            raise Refused(400, "BadRequest", f"error decoding YAML: {error}") from error
    elif request.content_type in ("", "application/json") or request.content_type.endswith("-patch+json"):
        try:
            value = json.loads(request.body)
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


def check_shape(obj: Object) -> None:
    """Raises Refused 400 where what the server itself looks into is no mapping or no list."""
    wrong = [part for part in ("metadata", "spec", "status") if not isinstance(obj.get(part), dict | None)]
    if isinstance(meta := obj.get("metadata"), dict):
        kinds = dict.fromkeys(("labels", "annotations"), dict) | {"finalizers": list, "name": str, "namespace": str}
        wrong += [f"metadata.{part}" for part, kind in kinds.items() if not isinstance(meta.get(part), kind | None)]
    if wrong:
        raise Refused(400, "BadRequest", f"json: cannot unmarshal {wrong[0]} into Go struct field")


def same_kind(kind: str, obj: Object, required: bool = False) -> None:
    """Complete what an object says of its kind. Raises Refused 400 where it says another."""
    of = KINDS[kind]
    got = (obj.get("apiVersion"), obj.get("kind"))
    absent = not required and got == (None, None)
    if got != (of.api_version, of.kind) and not absent:
        text = f"does not match the expected ({of.api_version}, {of.kind})"
        raise Refused(400, "BadRequest", f"the API version in the data ({got[0]}, {got[1]}) {text}")
    obj |= {"apiVersion": of.api_version, "kind": of.kind}


def is_strict(query: dict[str, str]) -> bool:
    """Whether an unknown field is refused."""
    return query.get("fieldValidation") == "Strict"


def is_dry(query: dict[str, str]) -> bool:
    """Whether nothing is to be stored."""
    return query.get("dryRun") == "All"


def writer(request: Request) -> str:
    """Who writes, where the request must not say."""
    return request.query.get("fieldManager") or "unknown"
