"""What is wrong with a recipe, for people: one line a mistake, what was given, what belongs there, what was meant."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from pipeline.core.redaction import redacted

Sections = tuple[type[BaseModel], ...]
ALIKE = 0.6
"""Similarity (difflib's ratio) from which a name counts as meant."""
LONGEST = 80
"""Characters of a given value that are shown."""


def explain(recipe: type[BaseModel], error: ValidationError, overrides: Sequence[str]) -> list[str]:
    """One line for each mistake. `overrides`: named where a mistake is theirs and not the file's."""
    keys = [override.partition("=")[0].strip() for override in overrides]
    entries = [(*_place(recipe, entry["loc"], entry["type"]), entry) for entry in error.errors()]
    meant = {_join(path[:-1], near) for path, where, e in entries if e["type"] == "extra_forbidden"
             for near in [_nearest(path[-1], _fields(where))] if near}  # fmt: skip
    lines: list[str] = []
    for path, where, entry in entries:
        if entry["type"] == "missing" and _join(path) in meant:
            continue  # it is there, under a name that another line corrects
        lines.append(f"{_join(path)}: {_line(recipe, path, where, entry)}{_source(path, keys)}")
    return lines


def _line(recipe: type[BaseModel], path: list[str], where: Sections, entry: Mapping[str, Any]) -> str:
    context: Mapping[str, Any] = entry.get("ctx") or {}
    given = _short(entry["input"])
    match entry["type"]:
        case "extra_forbidden":
            return f"there is no such field. {_meant(recipe, path, where)}"
        case "missing":
            texts = [s.model_fields[path[-1]].description for s in where if path[-1] in s.model_fields]
            about = f" It is: {' '.join(texts[0].split())}" if texts and texts[0] else ""
            return f"is missing. Give it a value.{about}"
        case "literal_error" | "union_tag_invalid":
            words = re.findall(r"'([^']*)'", str(context.get("expected", context.get("expected_tags"))))
            tag = context.get("tag")
            near = _nearest(str(tag or entry["input"]), words)
            meant = f" Did you mean {near}?" if near else ""
            return f"{redacted(str(tag)) if tag else given} is none of {', '.join(words)}.{meant}"
        case "union_tag_not_found":
            kinds = [kind for section in where for kind in _tags(section)]
            return f"is missing. Say which: {', '.join(kinds)}."
        case "model_type" | "model_attributes_type" | "dict_type":
            what = "is empty" if entry["input"] is None else f"{given} is a value"
            return f"{what}, and a section belongs there. Put its fields below it."
        case "value_error":
            return str(entry["msg"]).removeprefix("Value error, ")
        case _:
            return f"{entry['msg']} (got {given})"


def _meant(recipe: type[BaseModel], path: list[str], where: Sections) -> str:
    fields = _fields(where)
    if near := _nearest(path[-1], fields):
        return f"Did you mean {near}?"
    places = [place for place in _all(recipe, ()) if place[-1] == path[-1]]
    places.sort(key=lambda place: place[:1] != tuple(path[:1]))  # of the same section of the recipe first
    if places:
        return f"Did you mean {' or '.join(map('.'.join, places[:3]))}?"
    return f"There are: {', '.join(fields)}."


def _place(recipe: type[BaseModel], loc: Sequence[Any], kind: str) -> tuple[list[str], Sections]:
    """The path as it is written in the file, without pydantic's names of kinds, and the sections that its end is in."""
    path: list[str] = []
    inside: Sections = ()
    at: Sections = (recipe,)
    for step in loc:
        chosen = tuple(section for section in at if len(at) > 1 and step in _tags(section))
        if chosen:
            at = chosen
            continue
        path.append(str(step))
        inside = at
        fields = [section.model_fields[step] for section in at if step in section.model_fields]
        at = _sections(fields[0].annotation) if fields else (at if isinstance(step, int) else ())
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        path.append("kind")
        inside = at
    return path, inside


def _sections(annotation: Any) -> Sections:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    if get_origin(annotation) in (Union, UnionType, tuple, list) or hasattr(annotation, "__metadata__"):
        return tuple(section for part in get_args(annotation) for section in _sections(part))
    return ()


def _tags(section: type[BaseModel]) -> tuple[str, ...]:
    kind = section.model_fields.get("kind")
    return tuple(map(str, get_args(kind.annotation))) if kind else ()


def _fields(sections: Sections) -> list[str]:
    return list(dict.fromkeys(name for section in sections for name in section.model_fields))


def _all(section: type[BaseModel], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, field in section.model_fields.items():
        yield (*above, name)
        for below in _sections(field.annotation):
            yield from _all(below, (*above, name))


def _nearest(name: str, names: Sequence[str]) -> str:
    return next(iter(get_close_matches(name, names, 1, ALIKE)), "")


def _source(path: list[str], keys: Sequence[str]) -> str:
    """Names the override that a mistake comes from."""
    whole = _join(path)
    for key in keys:
        if whole == key or whole.startswith(f"{key}.") or key.startswith(f"{whole}."):
            return f" (override {key})"
    return ""


def _join(path: Sequence[str], *more: str) -> str:
    return ".".join([*path, *more]) or "the recipe"


def _short(value: Any) -> str:
    text = redacted(repr(value))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
