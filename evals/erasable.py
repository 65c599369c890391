"""The lines of an evidence bundle, and what is left of one when the person behind it is forgotten.

    {"erased": true, "id": ..., "cluster": ..., "slice": ..., "leaf": ...}     of an item
    {"erased": true, "id": ..., "leaf": ..., "counts": {...}}                  of a model's answers to it

Owns that erasing changes no digest and no verdict: a file's digest is that of its erased form, which holds for every
line the sha256 of the whole line (`leaf`) and all that the verdict needs of it. So what is left of an erased line is
bound by the same digest as it was before. A person's lines have a random salt, so that a leaf confirms no guess.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal, TypeVar

from evals.results import ItemCounts, ItemResult
from evals.suites import Item
from pipeline.core.storage import Record, write_atomically

ITEMS = "items.jsonl"
"""The file of a suite's items; every other one of lines has a model's answers."""

T = TypeVar("T")


class ErasedItem(Record):
    """An item without its text, reference, user and salt."""

    erased: Literal[True] = True
    id: str
    cluster: str
    slice: str
    leaf: str


class ErasedResult(Record):
    """The answers to an item without their texts."""

    erased: Literal[True] = True
    id: str
    leaf: str
    counts: ItemCounts


def items(path: Path) -> tuple[Item, ...]:
    """The items of a file, those that were erased without text. Raises ValueError for a line that is neither."""
    return tuple(_parsed(path, _item))


def results(path: Path) -> tuple[ItemResult, ...]:
    """The answers of a file, by item; of those that were erased the counts. Raises ValueError as `items` does."""
    return tuple(_parsed(path, _result))


def digest(path: Path) -> str:
    """sha256 of the file's erased form, whichever of its lines are erased. Raises ValueError as `items` does."""
    return hashlib.sha256(b"".join(each + b"\n" for each in _parsed(path, _erased_of(path)))).hexdigest()


def to_erase(path: Path, ids: Collection[str]) -> int:
    """How many lines of these items are not erased yet."""
    return sum(one != other for one, other in zip(_lines(path), _written(path, ids), strict=True))


def erase(path: Path, ids: Collection[str]) -> None:
    """Write the file anew with the lines of these items erased."""
    write_atomically(path, b"".join(line + b"\n" for line in _written(path, ids)))


def _written(path: Path, ids: Collection[str]) -> list[bytes]:
    records = items(path) if path.name == ITEMS else results(path)
    lines, erased = _lines(path), _parsed(path, _erased_of(path))
    return [other if each.id in ids else line for each, line, other in zip(records, lines, erased, strict=True)]


def _erased_of(path: Path) -> Callable[[bytes], bytes]:
    return _erased_item if path.name == ITEMS else _erased_result


def _erased_item(line: bytes) -> bytes:
    item = _item(line)
    leaf = item.leaf or hashlib.sha256(line).hexdigest()
    record = ErasedItem(id=item.id, cluster=item.cluster, slice=item.slice, leaf=leaf)
    return record.model_dump_json().encode()


def _erased_result(line: bytes) -> bytes:
    if _is_erased(line):
        return ErasedResult.model_validate_json(line).model_dump_json().encode()
    result = _result(line)
    record = ErasedResult(id=result.id, leaf=hashlib.sha256(line).hexdigest(), counts=result.counts())
    return record.model_dump_json().encode()


def _item(line: bytes) -> Item:
    if not _is_erased(line):
        return Item.model_validate_json(line)
    left = ErasedItem.model_validate_json(line)
    return Item(id=left.id, cluster=left.cluster, messages=[], reference="", slice=left.slice, leaf=left.leaf)


def _result(line: bytes) -> ItemResult:
    if not _is_erased(line):
        return ItemResult.model_validate_json(line)
    left = ErasedResult.model_validate_json(line)
    return ItemResult(id=left.id, samples=(), prompt_tokens=left.counts.prompt_tokens, erased=left.counts)


def _is_erased(line: bytes) -> bool:
    return line.startswith(b'{"erased":true,')


def _parsed(path: Path, parse: Callable[[bytes], T]) -> list[T]:
    try:
        return [parse(line) for line in _lines(path)]
    except ValueError as error:
        raise ValueError(f"{path} is not one record a line ({error}). Fetch the bundle again.") from error


def _lines(path: Path) -> list[bytes]:
    *lines, rest = path.read_bytes().split(b"\n")
    if rest:
        raise ValueError("its last line has no end")
    return lines
