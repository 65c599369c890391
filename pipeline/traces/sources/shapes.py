"""The structure behind a text: JSON, the repr of a Python object (literals only, up to LITERAL characters), plain text;
the fingerprint of an unknown structure: its types and keys, never a value; and paths into a row: `request.messages`,
`choices[0].message`, `rows[-1]`. JSON that is a text is looked into."""

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

TABLES: dict[str, Any] = msgspec.yaml.decode(Path(__file__).with_name("names.yaml").read_bytes())
Value = TypeVar("Value")
Json = dict[str, Any]

LITERAL = 1 << 16
NOTHING = frozenset({"None", "null", "undefined"})
"""Texts that a program writes where there is none."""
ODD = re.compile(r"\s*+(?:[\"\[{<]|[A-Z]\w*+\(|[a-z_]++=['\"\[{(<A-Z]|(?:None|null|undefined)\s*\Z)").match
"""Whether a text may be something else than plain text: what is not odd is never looked at again."""

# An object or a list of texts begins so, be it JSON, Python, or one of them cut off.
_BEGINS = re.compile(r"[\[({\s]*\{\s*(?:'[^'\n]{0,80}'|\"[^\"\n]{0,80}\")\s*:|\[[\s\[(]*['\"(<{].*\]\s*\Z", re.DOTALL)
_REPR = re.compile(
    r"\[?<[\w.]+(?: [\w.]+)* at 0x[0-9a-fA-F]+>|\[object [A-Z]\w*\]|\[?[A-Z]\w*\(\w+=.*\)\]?\Z"
    r"|(?:content|role|id|text|parts|messages?|choices|candidates|output|kind|type|model|name)="
    r"(?:'[^']*'|\"[^\"]*\"|None|\[.*\]|\{.*\}|\w+\(.*\)|<.*>)(?:\Z|,? \w+=)",
    re.DOTALL,
)
_CHAT_KEY = re.compile(
    r"[\"'](?:role|content|parts|type|text|messages?|choices|candidates|tool_?[cC]alls|arguments|args|input|output)[\"']\s*:"
)
_KEY = re.compile(r"[A-Za-z_][\w.-]{0,39}")
_DEPTH, _KEYS, _LENGTH = 3, 12, 200


class Unreadable(ValueError):
    """A value of no known shape. The text is its fingerprint."""


def names(table: str) -> tuple[str, ...]:
    """Those of a table of names.yaml, in their order."""
    return tuple(TABLES[table].split())


def grouped(table: str) -> dict[str, tuple[str, ...]]:
    return {group: tuple(text.split()) for group, text in TABLES[table].items()}


def in_order(numbered: Mapping[int, Value], first: int = 0) -> list[Value]:
    """Values whose numbers came with them. Raises Unreadable where one is missing: a part was not recorded."""
    numbers = sorted(numbered)
    if numbers != list(range(first, first + len(numbers))):
        raise Unreadable("a number is missing")
    return [numbered[n] for n in numbers]


def unreadable(value: Any) -> Unreadable:
    """With the shape of a value, its types and the names of its keys, in at most _LENGTH characters."""
    return Unreadable(_shape(value, _DEPTH)[:_LENGTH])


def decoded(value: Any) -> Any:
    """The value of JSON in a string; anything else, and plain text, as it is."""
    if not isinstance(value, str) or value[:1] not in ('"', "{", "["):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


def plain(value: Any) -> Any:
    """A database's value, and what is inside it, in JSON's types, or a time. Raises UnicodeDecodeError for bytes that
    are no text."""
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in cast(dict[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in cast(list[Any], value)]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(cast(bytes, value)).decode()
    if isinstance(value, Decimal):
        return int(value) if (number := float(value)).is_integer() else number
    if isinstance(value, timedelta):
        return value.total_seconds()
    is_plain = value is None or isinstance(value, str | int | float | datetime)
    return value if is_plain else str(value)  # a date, a UUID, an address


def object_of(value: Any) -> Json:
    return cast(Json, value) if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def value_of(text: str) -> Any:
    """What a logged text stands for: a structure, None, or itself. Raises Unreadable for a structure that is broken."""
    if not ODD(text):
        return text
    bare = text.strip()
    if bare in NOTHING:
        return None
    if bare[0] in '"[{':
        try:
            return msgspec.json.decode(bare)
        except ValueError:  # RecursionError is the caller's: it refuses the row
            pass
        if bare[0] != '"' and not is_followed_by_words(bare):
            try:
                return literal(bare)
            except Unreadable:
                if _BEGINS.match(bare) and (not bare.startswith('{"') or _CHAT_KEY.search(bare)):
                    raise
    refuse_repr(bare)
    return text


def refuse_repr(text: str) -> None:
    """Raises Unreadable for what Python or JavaScript prints of an object."""
    if _REPR.match(text.strip()):
        raise Unreadable("text: the repr of an object")


def literal(text: str) -> Any:
    """A Python literal as JSON's types. Raises Unreadable for any other text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python will not know some day
            return json.loads(json.dumps(ast.literal_eval(text if len(text) <= LITERAL else "")))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise Unreadable("text: a structure that is neither JSON nor a Python literal") from None


def is_followed_by_words(text: str) -> bool:
    """Whether a text begins with JSON and is followed by words."""
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return text[end:].lstrip()[:1] not in ("", "[", "{", ",", "]", "}")


def _shape(value: Any, depth: int) -> str:
    if isinstance(value, Mapping):
        pairs = list(cast(Mapping[Any, Any], value).items())
        if depth == 0:
            return "{...}"
        names = (key if isinstance(key, str) and _KEY.fullmatch(key) else "?" for key, _ in pairs[:_KEYS])
        inner = ",".join(f"{name}:{_shape(each, depth - 1)}" for name, (_, each) in zip(names, pairs, strict=False))
        return "{" + inner + (",..." if len(pairs) > _KEYS else "") + "}"
    if isinstance(value, (list, tuple)):
        items = cast(list[Any], value)
        shapes = list(dict.fromkeys(_shape(item, max(depth - 1, 0)) for item in items[:_KEYS]))
        return "[" + " | ".join(shapes[:3]) + "]"
    return "null" if value is None else type(value).__name__


_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d+)\]")
_EMPTY = (None, "", {}, [], "{}", "[]")
"""What a database's column holds by default is nothing."""


def first(row: Mapping[str, Any], paths: Sequence[str]) -> Any:
    """What the first of the paths leads to that leads to something; None where none does."""
    return next((value for path in paths if (value := at(row, path)) not in _EMPTY), None)


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
