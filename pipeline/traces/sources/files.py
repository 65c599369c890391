"""Source files: listed and read as a stream of bytes through fsspec, so a local folder and s3:// are one.

Owns listing, versions and retries. Refuses to know what the bytes mean. A file that breaks off, changes or vanishes
gives what came before, then raises `Broken`; a source that as a whole cannot be read is a ValueError.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from fsspec.core import url_to_fs

from pipeline.core.buckets import bucket_fault, is_bucket
from pipeline.core.storage import shown_path
from pipeline.traces.sources.compression import CHUNK, ENDINGS, Broken, PartLimits, decompressed
from pipeline.traces.sources.protocol import Digest, SourcePart

JSON = (".jsonl", ".ndjson", ".json")
PARQUET = (".parquet",)
CSV = (".csv",)
NAMES = {"JSONL": ".jsonl", "Parquet": ".parquet", "CSV": ".csv", "protobuf": ".pb"}
"""Formats as people call them, with an ending of each."""
WHOLE = 64 << 20
"""A file that can only be read as one value may have so many bytes."""
SCHEMES = ("file", "s3", "s3a", "gs", "abfs", "abfss")
S3_TIMEOUT_S = 60.0
S3_ATTEMPTS = 8


class Files:
    """The files below one path or `s3://` prefix. Makes no connection until it is asked."""

    def __init__(self, uri: str, limits: PartLimits | None = None) -> None:
        scheme, marked, _ = uri.partition("://")
        if (marked and scheme not in SCHEMES) or "::" in uri:  # fsspec knows many more: hosts by ssh, archives, chains
            raise ValueError(
                f"Files are not read from {scheme[:40]!r}. Give traces.source.uri a path, or one of "
                f"{', '.join(SCHEMES)} before ://."
            )
        self.label, self.limits = uri, limits or PartLimits()
        options: dict[str, Any] = {}
        if uri.startswith(("s3://", "s3a://")):
            # Standard mode retries 500s, throttling and timeouts; a range that failed is asked for again, whole.
            retries = {"mode": "standard", "max_attempts": S3_ATTEMPTS}
            timeouts = {"connect_timeout": S3_TIMEOUT_S, "read_timeout": S3_TIMEOUT_S}
            options = {"config_kwargs": {"retries": retries, **timeouts}, "default_block_size": 4 << 20}
        with reading(uri):
            # A cached listing would hide the files that arrived since, so no day could be called complete.
            fs, root = url_to_fs(uri, use_listings_cache=False, skip_instance_cache=True, **options)
        self._fs: Any = fs
        self._root: str = root.rstrip("/")

    def parts(
        self,
        folder: str = "",
        *,
        holds: Literal["calls", "scores", "attributes"] = "calls",
        suffixes: tuple[str, ...] = JSON,
        strays: bool = False,
    ) -> list[SourcePart]:
        """Files of these formats below `folder`, in name order, hidden ones left out; [] when there is no such folder.

        `strays`: other files may lie among them and are not part of the source.
        Raises ValueError when the source is not there, cannot be listed or holds a format that is not read.
        """
        with reading(self.label):
            below = f"{self._root}/{folder}" if folder else self._root
            if not folder and self._fs.isfile(self._root):
                listing = {self._root: self._fs.info(self._root)}
            else:
                listing = self._fs.find(below, detail=True) if self._fs.exists(below) else {}
        if not listing:
            self._be_there()
        named = {self._name(path): info for path, info in listing.items()}
        named = {name: i for name, i in named.items() if not name.rpartition("/")[2].startswith((".", "_"))}
        readable = [name for name in sorted(named) if bare_name(name).endswith(suffixes)]
        if not strays and (unread := sorted(named.keys() - set(readable))):
            formats = " or ".join(kind for kind, end in NAMES.items() if end in suffixes)
            raise ValueError(
                f"{self.label} holds {unread[0]}, which is not {formats}. Export as {formats}, or move the file away."
            )
        return [SourcePart(name, _version(named[name]), int(named[name].get("size") or 0), holds) for name in readable]

    def chunks(self, part: SourcePart, digest: Digest) -> Iterator[bytes]:
        """The content, decompressed, at most CHUNK bytes at a time; the bytes as they are stored go into `digest`.

        Raises Broken after the last bytes that can be read, TooLarge where they would pass the limits.
        """
        read = inflated = 0

        def counted() -> Iterator[bytes]:
            nonlocal read
            for chunk in self.stored(part, digest):
                read += len(chunk)
                yield chunk

        stored = counted()
        try:
            for chunk in decompressed(stored, part.name):
                inflated += len(chunk)
                self.limits.check(inflated, read)
                yield chunk
        except Broken:
            for _ in stored:  # what was left unread belongs to the digest all the same
                pass
            raise

    def content(self, part: SourcePart, digest: Digest) -> bytes | None:
        """A whole file; None when it is larger than WHOLE."""
        read: list[bytes] = []
        size = 0
        for chunk in self.chunks(part, digest):
            size += len(chunk)
            if size <= WHOLE:
                read.append(chunk)
            else:
                read.clear()
        return b"".join(read) if size <= WHOLE else None

    def stored(self, part: SourcePart, digest: Digest) -> Iterator[bytes]:
        """The bytes as they are stored. Raises Broken when they are not those that were listed."""
        path = self._path(part)
        try:
            with self._fs.open(path, "rb") as stream:
                while chunk := stream.read(CHUNK):
                    digest.update(chunk)
                    yield chunk
        except Exception as error:  # the boundary of fsspec: each backend raises its own exceptions
            self._check(part, path)
            raise _unreadable(f"{self.label}: {part.name}", error) from error
        self._check(part, path)

    def _be_there(self) -> None:
        """Raises ValueError when there is no such place at all: a bucket, a directory or a file."""
        if is_bucket(self.label):
            fault = bucket_fault(self.label, may_be_empty=True)
            if fault:
                raise ValueError(fault)
        elif not self._fs.exists(self._root):
            raise ValueError(f"{shown_path(self.label)} is not there. Point traces.source.uri to the traces.")

    def _check(self, part: SourcePart, path: str) -> None:
        now = None
        with reading(self.label), suppress(FileNotFoundError):
            now = _version(self._fs.info(path))
        if now != part.version:
            raise Broken(f"the file {'changed' if now else 'is gone'} since it was listed")

    def _path(self, part: SourcePart) -> str:
        return self._root if self._root.rpartition("/")[2] == part.name else f"{self._root}/{part.name}"

    def _name(self, path: str) -> str:
        return path[len(self._root) + 1 :] or path.rpartition("/")[2]


@contextmanager
def reading(uri: str) -> Generator[None]:
    """Turns whatever a storage driver raises into a ValueError that says what to do."""
    try:
        yield
    except Exception as error:  # the boundary of fsspec: each backend raises its own exceptions
        raise _unreadable(uri, error) from error


def _unreadable(uri: str, error: Exception) -> ValueError:
    return ValueError(
        f"{uri} cannot be read ({type(error).__name__}: {error}). Check the path, the credentials and the endpoint."
    )


def bare_name(name: str) -> str:
    """The name without the ending of its compression."""
    return next((name.removesuffix(end) for end in ENDINGS if name.endswith(end)), name)


def _version(info: dict[str, Any]) -> str:
    etag = info.get("ETag") or info.get("etag")
    if etag:
        return str(etag).strip('"')
    moment = next((info[key] for key in ("mtime", "LastModified", "last_modified", "updated") if key in info), "")
    return f"{info.get('size')}-{moment}"
