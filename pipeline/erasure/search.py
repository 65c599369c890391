"""The search for what is left of a user: every file under the data root, its name, and every text in it.

Owns what is searched and the account of it: files and bytes, how many identifiers, and what could not be looked into,
with the reason. Refuses weights: in them nobody can look for a person, so models are blocked and not searched.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from pipeline.erasure.formats import FileKind, Unsearchable, decoded, kind_of, windows
from pipeline.erasure.identifiers import SHORT, Identifiers
from pipeline.storage import Store

HEADER_BYTES = 100 << 20
"""Of safetensors: no reader takes a larger one."""
_BINARY = (FileKind.SQLITE, FileKind.AVRO)


class SearchResult(NamedTuple):
    files: int
    bytes: int
    """Decoded."""
    identifiers: int
    remains: tuple[str, ...]
    """Names of the files that hold one of the identifiers, or that could not be looked into, with the reason."""
    unsearched: tuple[str, ...]
    """What was not searched and is no file by itself to see to, with the reason."""


def search(store: Store, identifiers: Identifiers, passed: Collection[str] = ()) -> SearchResult:
    """Read everything under the data root but weights. `passed`: names that are gone when the erasure is over."""
    remains: list[str] = []
    files = size = 0
    weights: Counter[str] = Counter()
    folders: list[str] = []
    root = store.root.resolve()
    for path in _files(store.root, remains):
        name = str(path.relative_to(store.root))
        if name in passed or (path.is_symlink() and (path.resolve().is_relative_to(root) or not path.exists())):
            continue  # what a link means is searched where it lies
        if not path.is_file():
            folders.append(name)
            continue
        try:
            result = look_into(path, identifiers)
        except FileNotFoundError:  # a lock or a staged file of a process that just ended
            continue
        if result is None:
            weights.update(files=1, bytes=path.stat().st_size)
            continue
        files, size = files + 1, size + result.bytes
        if result.holds or identifiers.in_text(name):
            remains.append(name)
        elif result.why:
            remains.append(f"{name}: not searched, {result.why}")
    unsearched: list[str] = []
    if weights:
        count, total = weights["files"], weights["bytes"]
        unsearched.append(f"{count} files of weights, {total:,} bytes: no person can be searched for in them")
    if folders:
        unsearched.append(f"links to what lies outside the data root: {', '.join(folders)}")
    if identifiers.short:
        unsearched.append(f"{identifiers.short} identifiers of under {SHORT} characters, but for whole values")
    if identifiers.shared:
        unsearched.append(f"{len(identifiers.shared)} ids of traces that others have a part in: they stay in those")
    return SearchResult(files, size, len(identifiers), tuple(remains), tuple(unsearched))


def _files(root: Path, remains: list[str]) -> Iterator[Path]:
    """Files and links, by name; a folder that cannot be listed is added to `remains`."""

    def unlisted(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # a scratch folder of a process that just ended
            remains.append(f"{Path(error.filename).relative_to(root)}: not searched, {error.strerror}")

    for folder, inner, files in os.walk(root, onerror=unlisted):
        inner.sort()
        links = [name for name in inner if Path(folder, name).is_symlink()]
        yield from (Path(folder, name) for name in sorted([*files, *links]))


class FileSearch(NamedTuple):
    holds: bool
    bytes: int
    why: str
    """Why a part of the file, or all of it, could not be searched; "" where all was."""


def _holds(content: bytes, identifiers: Identifiers) -> bool:
    """Also text in UTF-16 and UTF-32 without a mark, and arrays of it: what is ASCII there has a zero around it."""
    return identifiers.in_bytes(content) or (b"\0" in content and identifiers.in_bytes(content.replace(b"\0", b"")))


def _look_into_header(path: Path, identifiers: Identifiers) -> FileSearch | None:
    """What stands before the weights in a file of safetensors; None where that does not hold the person."""
    if path.suffix != ".safetensors":
        return None
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = stream.read(size) if size <= HEADER_BYTES else b""
    return FileSearch(True, len(header), "") if identifiers.in_bytes(header) else None


def look_into(path: Path, identifiers: Identifiers) -> FileSearch | None:
    """Whether a file holds an identifier; None for weights that do not say so themselves."""
    kind = kind_of(path)
    if kind is FileKind.WEIGHTS:
        return _look_into_header(path, identifiers)
    size, why = 0, ""

    def pieces() -> Iterator[bytes]:
        nonlocal size, why
        try:
            for piece in decoded(path, kind):
                size += len(piece)
                yield piece
        except Unsearchable as error:
            why = str(error)

    holds = any(_holds(piece, identifiers) for piece in windows(pieces(), identifiers.longest))
    if not holds and kind in _BINARY:  # also what was deleted there and lies in a free page
        with path.open("rb") as stream:
            raw = windows(iter(lambda: stream.read(1 << 20), b""), identifiers.longest)
            holds = any(map(identifiers.in_binary, raw))
        size += path.stat().st_size
    return FileSearch(holds, size, why)
