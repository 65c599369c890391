"""The patches that are not server-side apply: merge (RFC 7386), strategic merge, JSON patch (RFC 6902)."""

from __future__ import annotations

from typing import Any

from . import ssa
from .kinds import CUSTOM, Object, Refused
from .writes import copied, patched

ACCEPTED = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
STRATEGIC = "application/strategic-merge-patch+json"


def check_type(kind: str, content_type: str) -> None:
    """Raises Refused 415 for a type that the resource doesn't take, whether or not there is such an object."""
    types = ACCEPTED if kind in CUSTOM else (*ACCEPTED, STRATEGIC)
    if content_type not in types:
        text = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(types)
        raise Refused(415, "UnsupportedMediaType", text)


def patch_of(kind: str, content_type: str, old: Object, patch: Any) -> Object:
    """The object after a patch of a type that it takes. Raises Refused 400 for a JSON patch that is none, 422 for one
    that does not fit the object."""
    if content_type == "application/merge-patch+json":
        return patched(old, patch)
    return _strategic(old, patch, ()) if content_type == STRATEGIC else _json_patch(old, patch)


def _strategic(target: Any, patch: Any, path: ssa.Field) -> Any:
    if isinstance(patch, dict):
        result = dict(target) if isinstance(target, dict) else {}
        for key, value in patch.items():
            if value is None:
                result.pop(key, None)
            elif key != "$patch":
                result[key] = _strategic(result.get(key), value, (*path, f"f:{key}"))
        return result
    if not isinstance(patch, list) or not isinstance(target, list):
        return copied(patch)
    keys = ssa.keys_of(path, [*target, *patch])
    if not keys:
        return copied(patch)
    items = {ssa.key_of(keys, item): item for item in target}
    for item in patch:
        key = ssa.key_of(keys, item)
        if item.get("$patch") == "delete":
            items.pop(key, None)
        else:
            items[key] = _strategic(items.get(key), item, (*path, key))
    return list(items.values())


def _json_patch(old: Object, patch: Any) -> Object:
    import jsonpatch

    try:
        return jsonpatch.apply_patch(old, patch)
    except jsonpatch.InvalidJsonPatch as error:
        raise Refused(400, "BadRequest", f"error decoding patch: {error}") from error
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
        raise Refused(
            422, "Invalid", f"the server rejected our request due to an error in our request: {error}"
        ) from error
