"""Removals: whole lines of one owner that are to go from a file that the loop wrote.

A place is one kind of file or table. `count` and `remove` are over the same rows, so what a person is shown before an
erasure, what goes, and what the proof says are the same numbers. Every other line stays as it is, byte for byte.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from pipeline.core.storage import Store
from pipeline.core.unfinished import held, replacing


class Removal(NamedTuple):
    """The rows that go from one file. `name`: of the file, below the data root."""

    name: str
    rows: int
    make: Callable[[], object]


@dataclass(frozen=True)
class Place:
    """What the loop keeps in one kind of file or table. Counts are by file or day, without zeros."""

    name: str
    count: Callable[[], dict[str, int]]
    remove: Callable[[], object]


def of_files(name: str, removals: Callable[[], Iterable[Removal]]) -> Place:
    """`removals`: lists what is to go now, each time that it is called."""

    def count() -> dict[str, int]:
        return {each.name: each.rows for each in removals()}

    return Place(name, count, lambda: make(removals()))


def make(removals: Iterable[Removal]) -> list[str]:
    """Make these removals; `name: n lines` of each."""
    made: list[str] = []
    for each in removals:
        each.make()
        made.append(f"{each.name}: {each.rows} lines")
    return made


def of_lines(store: Store, path: Path, goes: Callable[[bytes], bool]) -> Iterator[Removal]:
    """The lines of a file, plain or gzip, that go; nothing where none does. Whoever appends to it is waited for."""
    with opened(path) as lines:
        rows = sum(map(goes, lines))
    if rows:
        yield Removal(str(path.relative_to(store.root)), rows, partial(_write_without, path, goes))


def opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _write_without(path: Path, goes: Callable[[bytes], bool]) -> None:
    with held(path), opened(path) as lines, replacing(path) as stream:
        kept = (line for line in lines if not goes(line))
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=stream, mode="wb", mtime=0) as packed:
                packed.writelines(kept)
        else:
            stream.writelines(kept)
