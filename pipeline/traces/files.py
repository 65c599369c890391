"""Source files: listed and read line by line through fsspec, so a local folder and s3:// are one.

Owns listing, decompression and the sha256 of each file as it was read. Refuses to know what a line means.
A gzip file that breaks off gives the lines before the break and then one `None` for its unread rest.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import date
from typing import IO, Any

from fsspec.core import url_to_fs

SUFFIXES = (".jsonl", ".ndjson", ".json")
CHUNK = 1 << 20
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class _Hashed(io.RawIOBase):
    """A byte stream that digests what passes through it: one read for the content and its digest."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.sha256 = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._raw.read(len(buffer))
        self.sha256.update(data)
        buffer[: len(data)] = data
        return len(data)


class SourceFile:
    """One file of a source. `sha256` is known once `lines()` or `content()` came to its end."""

    def __init__(self, fs: Any, path: str, name: str) -> None:
        self._fs = fs
        self._path = path
        self.name = name
        self.sha256 = ""

    def lines(self) -> Iterator[tuple[int, bytes | None]]:
        """Numbered lines (from 1) without the blank ones; `None` stands for the unread rest of a broken gzip."""
        with reading(self._path), self._fs.open(self._path, "rb") as raw:
            hashed = _Hashed(raw)
            buffered = io.BufferedReader(hashed, CHUNK)
            yield from _numbered(buffered, self.name)
            while buffered.read(CHUNK):  # what a broken gzip left unread belongs to the digest all the same
                pass
            self.sha256 = hashed.sha256.hexdigest()

    def content(self) -> bytes:
        with reading(self._path), self._fs.open(self._path, "rb") as raw:
            data: bytes = raw.read()
        self.sha256 = hashlib.sha256(data).hexdigest()
        return data


def list_files(uri: str, folder: str = "", *, strays: bool = False) -> list[SourceFile]:
    """JSON files below `folder` of `uri` in name order, hidden ones left out; [] when there is no such folder.

    `strays`: other files may lie among them and are not part of the source.
    Raises ValueError when the source cannot be listed or holds a format that is not read.
    """
    with reading(uri):
        # A cached listing would hide the files that arrived since, so no day could be called complete.
        fs, root = url_to_fs(uri, use_listings_cache=False, skip_instance_cache=True)
        root = root.rstrip("/")
        if fs.isfile(root):
            return [SourceFile(fs, root, root.rpartition("/")[2])]
        below = f"{root}/{folder}" if folder else root
        paths: list[str] = sorted(fs.find(below)) if fs.exists(below) else []
    named = [(path, path[len(root) + 1 :]) for path in paths]
    named = [(path, name) for path, name in named if not name.rpartition("/")[2].startswith((".", "_"))]
    readable = [(path, name) for path, name in named if name.removesuffix(".gz").endswith(SUFFIXES)]
    if not strays and (unread := sorted(set(named) - set(readable))):
        raise ValueError(
            f"{uri} holds {unread[0][1]}, which is not JSON lines. Export as JSONL, or move the file away."
        )
    return [SourceFile(fs, path, name) for path, name in readable]


def named_day(name: str) -> str | None:
    """The date in a file's own name, as YYYY-MM-DD."""
    for found in _DATE.findall(name.rpartition("/")[2]):
        try:
            return date.fromisoformat(found).isoformat()
        except ValueError:
            continue
    return None


@contextmanager
def reading(uri: str) -> Generator[None]:
    """Turns whatever a storage driver raises into a ValueError that says what to do."""
    try:
        yield
    except Exception as error:  # the boundary of fsspec: each backend raises its own exceptions
        raise ValueError(
            f"{uri} cannot be read ({type(error).__name__}: {error}). Check the path, the credentials and the endpoint."
        ) from error


def _numbered(stream: io.BufferedReader[Any], name: str) -> Iterator[tuple[int, bytes | None]]:
    head = stream.peek(2)[:2]
    if not head and name.endswith(".gz"):  # an upload that never began: not even an empty gzip
        yield 1, None
        return
    source: io.BufferedIOBase = gzip.GzipFile(fileobj=stream) if head == b"\x1f\x8b" else stream
    number = 0
    while True:
        number += 1
        try:
            line = source.readline()
        except (EOFError, zlib.error, gzip.BadGzipFile):
            yield number, None
            return
        if not line:
            return
        if line.strip():
            yield number, line
