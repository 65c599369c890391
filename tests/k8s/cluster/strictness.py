"""An object against the schema of its kind: unknown fields refused or dropped, everything else 422."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .. import schemas
from . import ssa
from .kinds import CUSTOM, KINDS, Object, Refused
from .validation import invalid

UNKNOWN = re.compile(r"^(?P<path>.*?): Additional properties are not allowed \((?P<names>.*) (?:was|were) unexpected\)")
OF_METADATA = ("metadata.name:", "metadata.labels", "metadata.annotations", "metadata.finalizers")
WRONG_TYPE = re.compile(r"^(?P<path>.*?): (?P<value>.*) is not of type ")


def checked(kind: str, obj: Object, strict: bool, how: str, subresource: str = "") -> tuple[Object, list[str]]:
    """The object without its unknown fields, and those, as warnings: of the status alone where that is the subresource,
    else of all but the status.

    `how` (create, update, apply, patch) decides how an unknown field is refused. Raises Refused 400 when strict, and
    422 for whatever else is wrong.
    """
    meta = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    looked_at = {k: v for k, v in obj.items() if k != "status" or subresource} | {"metadata": meta}
    if not schemas.known(looked_at):
        return obj, []
    # Of names and labels the write itself complains, in the API's words.
    matches = [text for text in schemas.problems(looked_at) if not text.startswith(OF_METADATA)]
    matches = [text for text in matches if text.startswith("status") or not subresource]
    unknown = [path for text in matches for path in _unknown(text)]
    wrong = [(m["path"], text) for text in matches if (m := WRONG_TYPE.match(text))]
    name, twice = meta.get("name", ""), list(_twice(looked_at, ()))
    if strict and unknown:
        text = "strict decoding error: " + ", ".join(f'unknown field "{_dotted(path)}"' for path in unknown)
        if how == "patch":
            raise invalid(kind, name, [("patch", f"Invalid value: {text}")])
        raise _unreadable(kind, text)
    if wrong and kind not in CUSTOM:
        raise _unreadable(kind, f"json: cannot unmarshal: {wrong[0][1]}")
    rest = [_complaint(text) for text in matches if not UNKNOWN.match(text)]
    if rest := rest + [(_dotted(path), f"Duplicate value: {key}") for path, key in twice if kind in CUSTOM]:
        raise invalid(kind, name, rest)
    for path in unknown:
        _drop(obj, path)
    return obj, [f'unknown field "{_dotted(path)}"' for path in unknown]


def check_typed(kind: str, sent: Object) -> None:
    """Raises Refused 500 without a reason for what is applied where the schema cannot tell its fields: strict or not,
    as the API server does (kubernetes/kubernetes#139253)."""
    result = schemas.problems(sent) if schemas.known(sent) else []
    wrong = [f"{_keyed(sent, path)}: field not declared in schema" for text in result for path in _unknown(text)]
    for match in filter(None, map(WRONG_TYPE.match, result)):
        if not match["value"].startswith("None"):  # a null passes as a value of any type, until the object is validated
            wrong.append(f"{_keyed(sent, _steps(match['path']))}: wrong type")
    wrong += [f"{_keyed(sent, path)}: duplicate entries for key {key}" for path, key in _twice(sent, ())]
    if wrong:
        of, meta = KINDS[kind], sent.get("metadata") or {}
        what = f"({meta.get('namespace', '')}/{meta.get('name', '')}; {of.api_version}, Kind={of.kind})"
        raise Refused(500, "", f"failed to create typed patch object {what}: {wrong[0]}")


def _unreadable(kind: str, why: str) -> Refused:
    of = KINDS[kind]
    return Refused(400, "BadRequest", f'{of.kind} in version "{of.version}" cannot be handled as a {of.kind}: {why}')


Steps = tuple[str | int, ...]


def _unknown(text: str) -> list[Steps]:
    match = UNKNOWN.match(text)
    if not match:
        return []
    steps = _steps(match["path"])
    return [(*steps, name) for name in re.findall(r"'([^']*)'", match["names"])]


def _steps(path: str) -> Steps:
    parts = re.findall(r"\[(\d+)\]|\['([^']*)'\]|([^.\[\]$]+)", path)
    return tuple(int(place) if place else quoted or plain for place, quoted, plain in parts)


def _keyed(obj: Object, path: Steps) -> str:
    """As an apply names it: an item of a list by its keys, where it has some."""
    fields, value = list[str](), obj
    for step in path:
        keys = ssa.keys_of(tuple(fields), value) if isinstance(step, int) and isinstance(value, list) else ()
        fields.append(ssa.key_of(keys, value[step]) if keys else f"f:{step}")
        inside = step in value if isinstance(value, dict) else isinstance(value, list) and isinstance(step, int)
        value = value[step] if inside else None
    return ssa.told(tuple(fields))


def _twice(value: Any, path: Steps) -> Iterator[tuple[Steps, str]]:
    """Lists that are merged by keys, with a key that two items have."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _twice(part, (*path, name))
    elif isinstance(value, list):
        keys = ssa.keys_of(tuple(f"f:{step}" for step in path), value)
        items = [ssa.key_of(keys, item) for item in value] if keys else []
        for at, part in enumerate(value):
            if keys and items[at] in items[:at]:
                yield path, ssa.told((items[at],))
            yield from _twice(part, (*path, at))


def _dotted(path: Steps | str) -> str:
    if isinstance(path, str):
        return path
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _complaint(text: str) -> tuple[str, str]:
    path, _, reason = text.partition(": ")
    return path, f"Invalid value: {reason}"


def _drop(obj: Object, path: Steps) -> None:
    *way, last = path
    node = obj
    for step in way:
        node = node[step]  # type: ignore[index]
    del node[last]  # type: ignore[arg-type]
