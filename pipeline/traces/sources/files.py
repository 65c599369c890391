"""Source files, listed and read as decompressed bytes through fsspec: a local folder and s3:// are one. A file that
breaks off, changes or vanishes gives what came before, then raises `Broken`."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

from pipeline.core.objects import fault, is_bucket, opened
from pipeline.core.storage import shown_path
from pipeline.traces.sources.protocol import Broken, Digest, Holds, SourcePart, check_size

LINES = (".jsonl", ".ndjson")
CHUNK = 1 << 20
PIECE = 1 << 16
"""Compressed bytes that are inflated at once: as many may be lost, at most, before a damaged place."""


class Files:
    """The files below one path or `s3://` prefix. Makes no connection until it is asked."""

    def __init__(self, uri: str) -> None:
        self.label = uri
        options: dict[str, Any] = {"default_block_size": 4 << 20} if is_bucket(uri) else {}
        self._fs, self._root = opened(uri, **options)
        self._fetched = dict[str, Any]()

    def parts(self, folder: str = "", *, holds: Holds = "calls", suffixes: tuple[str, ...] = LINES) -> list[SourcePart]:
        """Files of these formats below `folder`, in name order, without hidden ones and folders. Raises ValueError when
        the source is not there, cannot be listed or holds a format that is not read."""
        with _reading(self.label):
            below = f"{self._root}/{folder}" if folder else self._root
            if not folder and self._fs.isfile(self._root):
                listing = {self._root: self._fs.info(self._root)}
            else:
                listing = self._fs.find(below, detail=True)
        if not listing and not is_bucket(self.label) and not self._fs.exists(self._root):
            raise ValueError(f"{shown_path(self.label)} is not there. Point traces.source.uri to the traces.")
        named = {path[len(self._root) + 1 :] or path.rpartition("/")[2]: info for path, info in listing.items()}
        named = {name: info for name, info in named.items() if not (_is_hidden(name) or _is_folder(name, info))}
        readable = [name for name in sorted(named) if name.removesuffix(".gz").endswith(suffixes)]
        if unread := sorted(named.keys() - set(readable)):
            formats = ", ".join(suffixes)
            raise ValueError(f"{self.label} holds {unread[0]}, which is none of {formats}. Move the file away.")
        return [SourcePart(name, _version(named[name]), int(named[name].get("size") or 0), holds) for name in readable]

    def chunks(self, part: SourcePart, digest: Digest) -> Iterator[bytes]:
        """The content, decompressed, at most CHUNK bytes at a time; the bytes as they are stored go into `digest`.
        Raises Broken after the last bytes that can be read, TooLarge where they would pass the limits."""
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
                check_size(inflated, read)
                yield chunk
        except Broken:
            for _ in stored:  # what was left unread belongs to the digest all the same
                pass
            raise

    @contextmanager
    def opened(self, part: SourcePart) -> Generator[Any]:
        """The file as it is stored, to be read anywhere: of a large one in a bucket a piece is fetched, not all."""
        with _reading(f"{self.label}: {part.name}"), self._fs.open(self._path(part), "rb") as stream:
            yield stream

    def fetch(self, parts: Sequence[SourcePart]) -> None:
        """Get small files at once, which `stored` then gives. One that changed since it was listed has another version
        at the next listing; one that cannot be had is asked for again."""
        with _reading(self.label):
            self._fetched = self._fs.cat([self._path(part) for part in parts], on_error="return")

    def stored(self, part: SourcePart, digest: Digest) -> Iterator[bytes]:
        """The bytes as they are stored. Raises Broken when they are not those that were listed."""
        path = self._path(part)
        if isinstance(content := self._fetched.pop(path, None), bytes):
            digest.update(content)
            yield content
            return
        try:
            with self._fs.open(path, "rb") as stream:
                while chunk := stream.read(CHUNK):
                    digest.update(chunk)
                    yield chunk
        except Exception as error:  # the boundary of fsspec: each backend raises its own exceptions
            self._check(part, path)
            raise _unreadable(f"{self.label}: {part.name}", error) from error
        self._check(part, path)

    def _path(self, part: SourcePart) -> str:
        return self._root if self._root.rpartition("/")[2] == part.name else f"{self._root}/{part.name}"

    def _check(self, part: SourcePart, path: str) -> None:
        now = None
        with _reading(self.label), suppress(FileNotFoundError):
            now = _version(self._fs.info(path))
        if now != part.version:
            raise Broken(f"the file {'changed' if now else 'is gone'} since it was listed")


@contextmanager
def _reading(uri: str) -> Generator[None]:
    """Turns whatever a storage driver raises into a ValueError that says what to do."""
    try:
        yield
    except Exception as error:  # the boundary of fsspec: each backend raises its own exceptions
        raise _unreadable(uri, error) from error


def _unreadable(uri: str, error: Exception) -> ValueError:
    return ValueError(f"{uri} cannot be read: {fault(error)}")


def _is_hidden(name: str) -> bool:
    """What tools keep beside data: `_SUCCESS`, `_temporary/0/x.jsonl`, `.ipynb_checkpoints/x.jsonl`."""
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _is_folder(name: str, info: dict[str, Any]) -> bool:
    """An empty object that consoles, sync tools and Hadoop make for a folder; the prefix itself is `name` ""."""
    return not info.get("size") and (not name or name.endswith(("/", "_$folder$")))


def _version(info: dict[str, Any]) -> str:
    if etag := info.get("ETag") or info.get("etag"):
        return str(etag).strip('"')
    moment = next((info[key] for key in ("mtime", "LastModified", "last_modified", "updated") if key in info), "")
    return f"{info.get('size')}-{moment}"


def decompressed(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """The content of a stored file, at most CHUNK bytes at a time, by what its bytes say. Raises Broken after the last
    bytes that could be read; gzip proves its content only at its end, so rows before a damaged place may be damaged."""
    head = next(chunks, b"")
    stored = chain([head], chunks)
    if head.startswith(b"\x1f\x8b"):
        yield from _gunzipped(stored)
    elif not head and not name.endswith(LINES):  # an hour without a call gives a file without lines
        raise Broken("the file is empty: an upload that never began")
    else:
        yield from stored


def _gunzipped(chunks: Iterator[bytes]) -> Iterator[bytes]:
    from isal.igzip_lib import DECOMP_GZIP, IgzipDecompressor, IsalError

    member, begun = IgzipDecompressor(DECOMP_GZIP), False
    for piece in (chunk[at : at + PIECE] for chunk in chunks for at in range(0, len(chunk), PIECE)):
        data = piece
        while data or not member.needs_input:
            try:
                plain = member.decompress(data, CHUNK)
            except IsalError as error:  # pyright: ignore[reportGeneralTypeIssues]  (its stub has it as a value)
                raise Broken("the gzip is damaged") from error
            yield plain
            data, begun = b"", True
            if member.eof:
                data = member.unused_data.lstrip(b"\0")  # members may be padded with zeros
                member, begun = IgzipDecompressor(DECOMP_GZIP), False
    if begun:
        raise Broken("the gzip breaks off")
