"""An object against the schema of its kind: unknown fields refused or dropped, everything else 422."""

from __future__ import annotations

import re

from .. import schemas
from .kinds import CUSTOM, KINDS, Object, Refused
from .validation import invalid

UNKNOWN = re.compile(r"^(?P<path>.*?): Additional properties are not allowed \((?P<names>.*) (?:was|were) unexpected\)")
WRONG_TYPE = re.compile(r"^(?P<path>.*?): .* is not of type ")


def checked(kind: str, obj: Object, strict: bool, how: str) -> tuple[Object, list[str]]:
    """The object without its unknown fields, and those, as warnings.

    `how` (create, update, apply, patch) decides how an unknown field is refused. Raises Refused 400 when strict and 500
    for an apply, strict or not, as the API server does (kubernetes/kubernetes#139253); 422 for whatever else is wrong.
    """
    meta = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
    looked_at = {k: v for k, v in obj.items() if k != "status"} | {"metadata": meta}
    if not schemas.known(looked_at):
        return obj, []
    found = schemas.problems(looked_at)
    unknown = [path for text in found for path in _unknown(text)]
    wrong = [(m["path"], text) for text in found if (m := WRONG_TYPE.match(text))]
    of, name = KINDS[kind], meta.get("name", "")
    if how == "apply" and (unknown or wrong):
        what = f"({meta.get('namespace', '')}/{name}; {of.api_version}, Kind={of.kind})"
        at = (
            f".{_dotted(unknown[0])}: field not declared in schema"
            if unknown
            else f".{_dotted(wrong[0][0])}: wrong type"
        )
        raise Refused(500, "", f"failed to create typed patch object {what}: {at}")
    if strict and unknown:
        text = "strict decoding error: " + ", ".join(f'unknown field "{_dotted(path)}"' for path in unknown)
        if how == "patch":
            raise invalid(kind, name, [("patch", f"Invalid value: {text}")])
        raise _unreadable(kind, text)
    if wrong and kind not in CUSTOM:
        raise _unreadable(kind, f"json: cannot unmarshal: {wrong[0][1]}")
    if rest := [text for text in found if not UNKNOWN.match(text)]:
        raise invalid(kind, name, [_complaint(text) for text in rest])
    for path in unknown:
        _drop(obj, path)
    return obj, [f'unknown field "{_dotted(path)}"' for path in unknown]


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
