"""Removals: whole lines of one owner that an erasure takes out of a file that the loop wrote. `count` and `remove` are
over the same rows, so the preview, the removal and the proof have the same numbers."""

import gzip
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from pipeline.core.storage import Store, held, replacing


class Removal(NamedTuple):
    """Rows to remove from one file. `name`: relative to the data root."""

    name: str
    rows: int
    make: Callable[[], object]


@dataclass(frozen=True)
class Place:
    """One kind of file or table. Counts are by file or day, without zeros."""

    name: str
    count: Callable[[], dict[str, int]]
    remove: Callable[[], object]


def of_files(name: str, removals: Callable[[], Iterable[Removal]]) -> Place:
    """`removals`: lists the removals that are due at the time of the call."""
    return Place(name, lambda: {each.name: each.rows for each in removals()}, lambda: make(removals()))


def make(removals: Iterable[Removal]) -> list[str]:
    """`name: n lines` of each removal, once it is made."""
    removed: list[str] = []
    for each in removals:
        each.make()
        removed.append(f"{each.name}: {each.rows} lines")
    return removed


def of_lines(
    store: Store, path: Path, goes: Callable[[bytes], bool], left: Callable[[bytes], bytes] = lambda line: b""
) -> Iterator[Removal]:
    """The lines of a file, plain or gzip, that go; nothing where none does. `left`: what stays of a whole line."""
    with opened(path) as lines:
        rows = sum(map(goes, lines))
    if rows:
        yield Removal(str(path.relative_to(store.root)), rows, partial(_write_without, path, goes, left))


def opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _write_without(path: Path, goes: Callable[[bytes], bool], left: Callable[[bytes], bytes]) -> None:
    with held(path), opened(path) as lines, replacing(path) as stream:
        packed = gzip.GzipFile(filename="", fileobj=stream, mode="wb", mtime=0) if path.suffix == ".gz" else None
        for line in lines:
            kept = line if not goes(line) else left(line) if line.endswith(b"\n") else b""
            (packed or stream).write(kept)
        if packed is not None:
            packed.close()
