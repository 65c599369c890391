"""Compressed streams: gzip (several members, padding) and zstd, told by their first bytes, in bounded memory.

Owns saying that a stream is damaged, breaks off or inflates beyond its limits. Refuses to give up what was readable
before that.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from pipeline.traces.records import Reason

ENDINGS = (".gz", ".zst")
CHUNK = 1 << 20
PIECE = 1 << 16
"""Compressed bytes that are inflated at once: as many may be lost, at most, before a damaged place."""


FREE = 64 << 20
"""Inflated bytes of a part before its ratio counts: a small file of blanks does no harm."""


class Broken(Exception):
    """A part of the source ends before its end. The text says how, for people."""

    reason = Reason.TRUNCATED_FILE


class TooLarge(Broken):
    """A part of the source inflates beyond its limits: a file to fill a disk or a day with, or no source of traces."""

    reason = Reason.TOO_LARGE


class PartLimits(NamedTuple):
    """What one part may inflate to: bytes, and bytes for each stored one. `traces.max_part_bytes` and the like."""

    max_bytes: int = 64 << 30
    max_ratio: int = 200

    def check(self, inflated: int, stored: int) -> None:
        """Raises TooLarge."""
        if inflated > self.max_bytes:
            raise TooLarge(f"the file inflates to over {self.max_bytes} bytes (traces.max_part_bytes)")
        if inflated > FREE and inflated > self.max_ratio * stored:
            raise TooLarge(f"the file inflates to over {self.max_ratio} times its size (traces.max_part_ratio)")


def decompressed(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """The content of a stored file, at most CHUNK bytes at a time, by what its bytes say, whatever the name says.

    Raises Broken after the last bytes that could be read. gzip proves its content only at its end: rows shortly before
    a damaged place may be damaged too.
    """
    head = next(chunks, b"")
    whole = chain([head], chunks)
    if head.startswith(b"\x1f\x8b"):
        yield from _gunzipped(whole)
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        yield from _unzstd(whole)
    elif not head and name.endswith(ENDINGS):
        raise Broken("the file is empty: an upload that never began")
    else:
        yield from whole


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


def _unzstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    import pyarrow as pa

    stream = pa.CompressedInputStream(pa.PythonFile(_Pipe(chunks), "r"), "zstd")
    while True:
        try:
            plain = stream.read(CHUNK)
        except OSError as error:
            raise Broken("the zstd stream is damaged or breaks off") from error
        if not plain:
            return
        yield plain


class _Pipe(io.RawIOBase):
    """Chunks as a file to read from."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            self._left = memoryview(next(self._chunks, b""))
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size
