"""What is in a file: its kind by its bytes, and its content decoded, whatever its name says.

Owns the kinds that are searched, and the words for what is not. Text, CSV and protobuf come through the decoders that
the sources read by, so that what a source would read is what is searched.
"""

from __future__ import annotations

import lzma
import mmap
import sqlite3
import zipfile
import zlib
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import chain
from pathlib import Path

import msgspec
import pyarrow as pa

from pipeline.erasure.arrow_batches import MAGIC, check_batches
from pipeline.erasure.arrow_texts import columns
from pipeline.traces.records import Reason
from pipeline.traces.sources import csv_rows, otlp_binary
from pipeline.traces.sources.compression import PIECE, Broken, TooLarge, decompressed
from pipeline.traces.sources.files import CSV, bare_name
from pipeline.traces.sources.parquet import bounded, opened
from pipeline.traces.sources.parquet_pages import MAX_PAGE
from pipeline.traces.sources.protocol import MAX_LINE

BLOCK = 1 << 20
HEADER = 1 << 12
WINDOW = 1 << 18
_COLUMNS = MAX_PAGE // MAX_LINE
"""Of a database's table, whose values of a row are held at once."""
_PLAIN, _STORED = 0, 3
"""Columns as `table_xinfo` calls them: others are hidden, or computed when they are read."""
WEIGHT_NAMES = (".safetensors", ".bin", ".pt", ".pth")


class FileKind(StrEnum):
    TEXT = "text"
    CSV = "CSV"
    OTLP = "OTLP in protobuf"
    PARQUET = "Parquet"
    ARROW = "Arrow"
    SQLITE = "SQLite"
    AVRO = "Avro"
    ZIP = "zip"
    WEIGHTS = "weights"
    UNKNOWN = "a format"


_HEADS = {
    b"PAR1": FileKind.PARQUET,
    b"ARROW1": FileKind.ARROW,
    b"\xff\xff\xff\xff": FileKind.ARROW,  # its form for streams
    b"SQLite format 3\0": FileKind.SQLITE,
    b"Obj\x01": FileKind.AVRO,
    b"PK\x03\x04": FileKind.ZIP,
    **dict.fromkeys(
        (b"BZh", b"\xfd7zXZ\0", b"7z\xbc\xaf'\x1c", b"Rar!", b"\x04\x22\x4d\x18", b"PAR2"), FileKind.UNKNOWN
    ),
    **dict.fromkeys((b"PARE", b"ORC", b"%PDF", b"\xd0\xcf\x11\xe0"), FileKind.UNKNOWN),  # PARE: encrypted Parquet
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), FileKind.UNKNOWN),  # text in UTF-16 or UTF-32
    **dict.fromkeys((b"x\x01", b"x\x9c", b"x\xda", b"]\0\0"), FileKind.UNKNOWN),  # zlib, LZMA
}
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")


class Unsearchable(Exception):
    """A file, or the rest of one, that nobody can look into. The text says why."""


def content(path: Path) -> Iterator[bytes]:
    """The bytes, decompressed as the sources do. Raises Broken."""
    with path.open("rb") as stream:
        yield from decompressed(iter(lambda: stream.read(BLOCK), b""), path.name)


def kind_of(path: Path) -> FileKind:
    """By the first bytes; of what has none of a kind by the name, as the sources tell."""
    with path.open("rb") as stream:
        head = stream.read(16)
    known = next((kind for start, kind in _HEADS.items() if head.startswith(start)), None)
    if path.suffix in WEIGHT_NAMES and (
        path.suffix == ".safetensors" or known is FileKind.ZIP or head.startswith(b"\x80")
    ):
        return FileKind.WEIGHTS
    if known is not None:
        return known
    if bare_name(path.name).endswith(CSV):
        return FileKind.CSV
    try:
        first = next(iter(content(path)), b"")
        if first.startswith((*_COMPRESSED, *_HEADS)):
            return FileKind.UNKNOWN if not _is_otlp(path) else FileKind.OTLP
        return FileKind.OTLP if _is_otlp(path) else FileKind.TEXT
    except Broken:
        return FileKind.TEXT


def _is_otlp(path: Path) -> bool:
    return otlp_binary.is_binary(path.name, content(path))[0]


def decoded(path: Path, kind: FileKind) -> Iterator[bytes]:
    """Pieces of what is in a file, texts in them as JSON writes them. Raises Unsearchable after what could be read."""
    with readable(kind):
        if kind in (FileKind.TEXT, FileKind.CSV, FileKind.OTLP):
            yield from _texts(path, kind)
        elif kind is FileKind.ZIP:
            yield from _members(path)
        else:
            reader = {
                FileKind.PARQUET: _parquet,
                FileKind.ARROW: _arrow,
                FileKind.SQLITE: _database,
                FileKind.AVRO: _blocks_of_avro,
            }
            if kind not in reader:
                raise Unsearchable(f"{kind} that no source reads")
            yield from reader[kind](path)


@contextmanager
def readable(kind: FileKind) -> Generator[None]:
    """Whatever a reader of this kind says of a damaged file, said as Unsearchable. A disk's own errors pass."""
    try:
        yield
    except Broken as error:
        raise Unsearchable(str(error)) from error
    except _DAMAGED as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise Unsearchable(f"{kind} that cannot be read ({type(error).__name__})") from error


_DAMAGED = (
    *(pa.ArrowException, OSError),  # Arrow's errors of a page are OSErrors without a number
    *(sqlite3.Error, UnicodeDecodeError, zlib.error, zipfile.BadZipFile, EOFError, lzma.LZMAError),
    NotImplementedError,  # a zip in a compression that Python does not know
)


def windows(pieces: Iterable[bytes], overlap: int) -> Iterator[bytes]:
    """Larger pieces, each of which ends between two words and begins with the end of the one before."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size < WINDOW + 2 * overlap:
            continue
        whole = b"".join(held)
        end, least = len(whole), len(whole) - overlap
        while end > least and whole[end - 1 : end].isalnum():
            end -= 1
        end = end if end > least else len(whole)  # bytes without any words
        yield whole[:end]
        start = end - overlap
        while start < end and whole[start - 1 : start].isalnum():
            start += 1
        held, size = [whole[start:]], len(whole) - start
    yield b"".join(held)


def _texts(path: Path, kind: FileKind) -> Iterator[bytes]:
    """The content, and what its own decoder makes of it: there a value stands in quotes, whatever stood around it."""
    with path.open("rb") as stream:
        head = stream.read(HEADER)
    if head.startswith(_COMPRESSED):  # gzip's header has the name that the file had
        yield head + b"\n"
    yield from content(path)
    yield b"\n"
    if kind is FileKind.CSV:
        first = next(csv_rows.raw_rows(content(path), MAX_LINE), None)
        csv_rows.header_of(first or b"")
        for batch in csv_rows.records(content(path)):
            yield msgspec.json.encode([row for _, row in batch.records]) + b"\n"
    elif kind is FileKind.OTLP:
        for batch in otlp_binary.requests(content(path)):
            yield from _requests(batch.texts)
            for each in batch.rejected:
                if each.reason is Reason.TOO_LONG:  # it may be compressed by itself
                    raise Unsearchable(each.detail)


def _requests(texts: Collection[bytes]) -> Iterator[bytes]:
    for text in texts:
        try:
            yield msgspec.json.encode(otlp_binary.decode(text)) + b"\n"
        except ValueError as error:
            if text.startswith(_COMPRESSED):
                raise Unsearchable(f"a compressed request that cannot be read ({error})") from error
            continue  # no request of OTLP: its bytes were searched


def _parquet(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        file = opened(stream)
        yield from _described(file.schema_arrow)
        for batch, _ in bounded(stream):
            yield from columns(batch)


def _described(schema: pa.Schema) -> Iterator[bytes]:
    """Names and metadata of a table, its columns and what is in them."""
    yield from (value + b"\n" for pair in (schema.metadata or {}).items() for value in pair)
    fields = list(schema)
    while fields:
        field = fields.pop()
        yield field.name.encode() + b"\n"
        yield from (value + b"\n" for pair in (field.metadata or {}).items() for value in pair)
        fields += [field.type.field(i) for i in range(field.type.num_fields)]


def _arrow(path: Path) -> Iterator[bytes]:
    with pa.memory_map(str(path)) as source:
        is_file = source.read(len(MAGIC)) == MAGIC
        source.seek(0)
        check_batches(source, is_file)
        source.seek(0)
        if is_file:
            reader = pa.ipc.open_file(source)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        else:
            batches = reader = pa.ipc.open_stream(source)
        yield from _described(reader.schema)
        for batch in batches:
            batch.validate(full=True)  # a place in it that lies outside of it would end the process
            yield from columns(batch)


def _database(path: Path) -> Iterator[bytes]:
    """Every stored value of every table. What a table would compute is not asked for: a short expression can make a
    value of any size."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        connection.text_factory = bytes
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LINE)
        tables = connection.execute("select name from sqlite_master where type = 'table'").fetchall()
        for (table,) in tables:
            described = connection.execute(f"pragma table_xinfo({_identifier(table)})")
            stored = [_identifier(name) for _, name, _, _, _, _, hidden in described if hidden in (_PLAIN, _STORED)]
            for at in range(0, len(stored), _COLUMNS):
                some = ", ".join(stored[at : at + _COLUMNS])
                yield from _values(connection, f"select {some} from {_identifier(table)}")
    except sqlite3.DataError as error:
        raise TooLarge(f"a value inflates to over {MAX_LINE} bytes") from error
    finally:
        connection.close()


def _values(connection: sqlite3.Connection, query: str) -> Iterator[bytes]:
    for row in connection.execute(query):
        texts = [value for value in row if isinstance(value, bytes) and value]
        if texts:
            yield b'"' + b'"\n"'.join(texts) + b'"\n'


def _identifier(name: bytes) -> str:
    """A name of a table or column as SQL writes it."""
    return '"' + name.decode().replace('"', '""') + '"'


def _blocks_of_avro(path: Path) -> Iterator[bytes]:
    """The blocks of records, unpacked; between texts stand their lengths."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        yield from (raw[at : at + BLOCK] for at in range(0, len(raw), BLOCK))
        yield from _unpacked_avro(raw)


def _unpacked_avro(raw: mmap.mmap) -> Iterator[bytes]:
    codec, at = _codec_of_avro(raw)
    if codec == b"null":
        return
    if codec != b"deflate":
        raise Unsearchable(f"Avro compressed as {codec.decode(errors='replace')}")
    mark = raw[at - 16 : at]  # ends the header, and each block
    while at < len(raw):
        _, at = _number(raw, at)
        size, at = _number(raw, at)
        if size < 0 or raw[at + size : at + size + 16] != mark:
            raise Unsearchable("Avro that breaks off")
        inflater = zlib.decompressobj(-15)
        for start in range(at, at + size, PIECE):
            rest = raw[start : min(start + PIECE, at + size)]
            while rest:
                yield inflater.decompress(rest, BLOCK)
                rest = inflater.unconsumed_tail
        if not inflater.eof:
            raise Unsearchable("Avro that breaks off")
        at += size + 16


def _codec_of_avro(raw: mmap.mmap) -> tuple[bytes, int]:
    """How the blocks are compressed, and where they begin: after a map of bytes and a mark of 16."""
    codec, at = b"null", 4
    while True:
        count, at = _number(raw, at)
        if count == 0:
            return codec, at + 16
        if count < 0:  # the size of this part of the map follows
            _, at = _number(raw, at)
        for _ in range(abs(count)):
            key, at = _bytes(raw, at)
            value, at = _bytes(raw, at)
            codec = value if key == b"avro.codec" else codec


def _bytes(raw: mmap.mmap, at: int) -> tuple[bytes, int]:
    size, at = _number(raw, at)
    if not 0 <= size <= len(raw) - at:
        raise Unsearchable("Avro that breaks off")
    return raw[at : at + size], at + size


def _number(raw: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(raw):
            raise Unsearchable("Avro that breaks off")
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def _members(path: Path) -> Iterator[bytes]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.flag_bits & 1:
                raise Unsearchable(f"a zip with a password ({member.filename})")
            with archive.open(member) as stream:
                head = stream.read(BLOCK)
                if head.startswith((*_COMPRESSED, *_HEADS)):
                    raise Unsearchable(f"a zip with an archive in it ({member.filename})")
                yield from chain([head], iter(lambda stream=stream: stream.read(BLOCK), b""), [b"\n"])
