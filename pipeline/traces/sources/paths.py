"""Paths into a row: `request.messages`, `choices[0].message`, `rows[-1]`. JSON that is a text is looked into."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from pipeline.traces.sources.shapes import decoded, object_of

_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d+)\]")
_NOTHING = (None, "", {}, [], "{}", "[]")
"""What a database's column holds by default is nothing."""


def first(row: Mapping[str, Any], paths: Sequence[str]) -> Any:
    """What the first of the paths leads to that leads to something; None where none does."""
    return next((value for path in paths if (value := at(row, path)) not in _NOTHING), None)


def at(row: Mapping[str, Any], path: str) -> Any:
    """What the path leads to, JSON in text decoded on the way and not at its end; None where it leads nowhere. A column
    whose own name is the path comes first: names may hold dots."""
    if path in row:
        return row[path]
    value: Any = row
    for step in steps(path):
        value = decoded(value)
        if value is None:
            return None
        if isinstance(step, str):
            value = object_of(value).get(step)
        else:
            items = cast(list[Any], value) if isinstance(value, list) else []
            value = items[step] if -len(items) <= step < len(items) else None
    return value


@cache
def steps(path: str) -> tuple[str | int, ...]:
    return tuple(key or int(place) for key, place in _STEP.findall(path))


def last_key(path: str) -> str:
    return next((step for step in reversed(steps(path)) if isinstance(step, str)), path)
