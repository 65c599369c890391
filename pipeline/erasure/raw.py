"""Raw exports under the data root, written anew without a person, in every format that a source reads.

Owns which files these are, and the writing: a file keeps its format and its compression, whatever its name says of
them. Refuses what no source reads: the search that follows names it.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.erasure.columns import redacted_batch, rows_of
from pipeline.erasure.formats import FileKind, Unsearchable, content, decoded, kind_of, readable, windows
from pipeline.erasure.identifiers import Identifiers
from pipeline.erasure.units import RecordTest, Whose, owners, parsed, pruned, records_of, rows_named
from pipeline.storage import Store
from pipeline.traces.sources import csv_rows, otlp_binary
from pipeline.traces.sources.compression import Broken
from pipeline.traces.sources.elements import elements, is_array, may_be_array
from pipeline.traces.sources.files import WHOLE
from pipeline.traces.sources.parquet import bounded
from pipeline.traces.sources.protocol import MAX_LINE
from pipeline.unfinished import held, replacing

_HEAD = 256
"""Bytes of each of the person's lines that are kept, so that a line which breaks off is known again."""
LONGEST = MAX_LINE
"""Bytes of a record that is looked at by itself. No source reads a longer one: its file is searched in blocks, and
keeps it."""
_GROUP = 16 << 20
"""Bytes of a row group that is written anew, at the most; a smaller one stays one."""
_WORD = re.compile(rb"\w")


class RawChange(NamedTuple):
    name: str
    records: int
    """That went."""
    names: int
    """Records of others that stay without the names in them."""

    def __str__(self) -> str:
        parts = [f"{self.records} lines"] if self.records or not self.names else []
        return f"{self.name}: {', '.join([*parts, *([f'{self.names} names'] if self.names else [])])}"


class Owned(NamedTuple):
    """What raw files say of the person, gathered before one of them is written anew."""

    rows: set[str]
    """Ids of their traces and calls."""
    heads: set[bytes]
    """Beginnings of their lines."""


def raw_files(store: Store) -> list[Path]:
    """Files below the data root that are not the loop's own."""
    places = [path for path in sorted(store.root.glob("*")) if path.name not in layout.OWN]
    found = [p for place in places for p in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    return [p for p in found if p.is_file() and not p.is_symlink()]


def owned(paths: Iterable[Path], test: RecordTest) -> Owned:
    """What is the person's in these files."""
    own = Owned(set(), set())
    for path in _holding(paths, test):
        for value, text in _values(path):
            for record, around in records_of(value):
                if test.whose(record, around) is Whose.THEIRS:
                    own.rows.update(rows_named(record))
                    own.heads.add(text[:_HEAD])
    return own


def shared(paths: Iterable[Path], identifiers: Identifiers) -> set[str]:
    """Which of the person's traces and calls these files have as somebody else's too."""
    others: set[str] = set()
    test = RecordTest(Identifiers(identifiers.rows), None)
    for path in _holding(paths, test):
        for value, _ in _values(path):
            for record, around in records_of(value):
                users = list(owners(record, around))
                if users and not any(map(identifiers.is_user, users)):
                    others |= rows_named(record) & identifiers.rows
    return others


def values(paths: Iterable[Path]) -> Iterator[Any]:
    """Every record of files that a source reads, as far as they can be read."""
    for path in paths:
        if kind_of(path) in (FileKind.TEXT, FileKind.CSV, FileKind.OTLP, FileKind.PARQUET):
            yield from (value for value, _ in _values(path))


def rewrite(store: Store, path: Path, test: RecordTest, heads: Collection[bytes]) -> Iterator[RawChange]:
    """Write a file anew without the person's records, and without their names in those of others; yields the change
    before it is made. A file that ends before its end is left as it is: the search that follows names it."""
    kind = kind_of(path)
    if kind not in (FileKind.TEXT, FileKind.CSV, FileKind.OTLP, FileKind.PARQUET):
        return
    writer = _ParquetRewriter(path, test) if kind is FileKind.PARQUET else _Rewriter(path, kind, test, heads)
    try:
        with readable(kind):
            if not writer.changes():
                return
    except Unsearchable:
        return
    name = str(path.relative_to(store.root))
    yield RawChange(name, writer.records, writer.names)
    if not writer.left and test.identifiers.in_text(name):
        path.unlink()  # its name says whose it was
    else:
        with held(path), replacing(path) as stream:  # the gateway appends to its own
            writer.write(stream)


def _holding(paths: Iterable[Path], test: RecordTest) -> Iterator[Path]:
    """Files that no source reads are left to the search."""
    for path in paths:
        kind = kind_of(path)
        if kind in (FileKind.TEXT, FileKind.CSV, FileKind.OTLP, FileKind.PARQUET) and _has(path, kind, test):
            yield path


def _has(path: Path, kind: FileKind, test: RecordTest) -> bool:
    if test.identifiers.has_unsought_rows:
        return True
    try:
        return any(map(test.identifiers.in_bytes, windows(decoded(path, kind), test.identifiers.longest)))
    except Unsearchable:
        return True  # what of it could be read is looked at


def _values(path: Path) -> Iterator[tuple[Any, bytes]]:
    """The value of each record as it stands in a file, with its text; as far as it can be read."""
    kind = kind_of(path)
    with suppress(Unsearchable), readable(kind):
        if kind is FileKind.PARQUET:
            with path.open("rb") as stream:
                yield from ((row, b"") for batch, _ in bounded(stream) for row in rows_of(batch))
        elif kind is FileKind.CSV:
            yield from ((row, b"") for batch in csv_rows.records(content(path), LONGEST) for _, row in batch.records)
        elif kind is FileKind.OTLP:
            for batch in otlp_binary.requests(content(path), LONGEST):
                yield from ((otlp_binary.as_json(text), b"") for text in batch.texts)
        else:
            _, texts = _texts(path)
            yield from ((v, text) for text, is_whole in texts if is_whole and (v := parsed(text)) is not None)


class RawText(NamedTuple):
    """An element or a line with its end; or a piece of a line that is longer than LONGEST."""

    text: bytes
    is_whole: bool = True


def _texts(path: Path) -> tuple[bool, Iterator[RawText]]:
    """Whether a text file is one array, and its elements, or its lines; a file of one value is one. The elements raise
    Broken at one that is too long."""
    array, chunks = is_array(content(path)) if may_be_array(path.name) else (False, content(path))
    if array:
        return True, map(_element, elements(chunks, LONGEST))
    if may_be_array(path.name):
        head = _begun(chunks, WHOLE)
        if sum(map(len, head)) <= WHOLE and parsed(whole := b"".join(head)) is not None:
            return False, iter([RawText(whole)])
        chunks = chain(head, chunks)
    return False, _lines(chunks)


def _element(text: bytes | None) -> RawText:
    if text is None:
        raise Broken(f"an element of over {LONGEST} bytes")
    return RawText(text)


def _begun(chunks: Iterator[bytes], size: int) -> list[bytes]:
    """The first chunks, up to the one that goes beyond `size` bytes."""
    head: list[bytes] = []
    while size >= 0 and (chunk := next(chunks, None)) is not None:
        head.append(chunk)
        size -= len(chunk)
    return head


def _lines(chunks: Iterator[bytes]) -> Iterator[RawText]:
    begun: list[bytes] = []
    length, is_whole = 0, True
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        for text in rest:
            yield RawText(b"".join([*begun, first, b"\n"]), is_whole)
            begun, length, is_whole, first = [], 0, True, text
        begun.append(first)
        length += len(first)
        if length > LONGEST:
            yield RawText(b"".join(begun), False)
            begun, length, is_whole = [], 0, False
    if last := b"".join(begun):
        yield RawText(last, is_whole)


class _Rewriter:
    """One file of text, CSV or protobuf: counts what goes in a first reading, writes in a second."""

    def __init__(self, path: Path, kind: FileKind, test: RecordTest, heads: Collection[bytes]) -> None:
        self._path, self._kind, self._test, self._heads = path, kind, test, heads
        self._written: Callable[[], Iterator[bytes]] = {
            FileKind.TEXT: self._of_text,
            FileKind.CSV: self._of_csv,
            FileKind.OTLP: self._of_protobuf,
        }[kind]
        self.records = self.names = self.left = 0

    def changes(self) -> bool:
        if not (self._heads and self._kind is FileKind.TEXT) and not _has(self._path, self._kind, self._test):
            return False
        for _ in self._written():
            pass
        return bool(self.records or self.names)

    def write(self, stream: IO[bytes]) -> None:
        self.records = self.names = self.left = 0
        _compressed(self._path, self._written(), stream)

    def _of_text(self) -> Iterator[bytes]:
        array, texts = _texts(self._path)
        first = True
        for text, is_whole in texts:
            kept = self._line(text) if is_whole else text
            if kept is None:
                continue
            self.left += 1
            yield (b"[" if first else b",\n") + kept if array else kept
            first = False
        if array:
            yield b"[]\n" if first else b"]\n"

    def _line(self, text: bytes) -> bytes | None:
        """What stays of a line; None where nothing does."""
        start = text.strip()
        # A bracket alone is no piece of anybody's: every text that is laid out over lines has some.
        is_piece = bool(self._heads and _WORD.search(start))
        breaks_off = is_piece and not start.endswith((b"}", b"]"))
        if not (breaks_off or self._test.identifiers.in_bytes(text) or self._test.identifiers.has_unsought_rows):
            return text
        value = parsed(text)
        if value is None or isinstance(value, (str, int, float)):
            # Not JSON: a piece of one of theirs, or text that names them.
            theirs = is_piece and any(head.startswith(start[:_HEAD]) for head in self._heads)
            if not (theirs or self._test.identifiers.in_bytes(text)):
                return text
            self.records += 1
            return None
        rest, gone, renamed = pruned(value, self._test)
        self.records, self.names = self.records + gone, self.names + renamed
        if rest is None:
            return None
        return _dumped(rest) + (b"\n" if text.endswith(b"\n") else b"") if gone or renamed else text

    def _of_csv(self) -> Iterator[bytes]:
        header: list[str] | None = None
        for raw in csv_rows.raw_rows(content(self._path), LONGEST):
            if raw is None:
                raise Broken(f"a row of over {LONGEST} bytes")
            if header is None:
                header = csv_rows.header_of(raw)
                yield raw + b"\n"
                continue
            record = csv_rows.record(header, raw) if raw.strip() else {}
            if not isinstance(record, dict):
                if self._test.identifiers.in_bytes(raw):
                    self.records += 1
                    continue
                record = {}
            whose = self._test.whose(record)
            if whose is Whose.THEIRS:
                self.records += 1
                continue
            self.left += 1
            if whose is Whose.NAMES_THEM:
                self.names += 1
                raw = _csv_row(self._test.redacted(record).values())
            yield raw + b"\n"

    def _of_protobuf(self) -> Iterator[bytes]:
        framed = otlp_binary.is_framed(content(self._path))
        for batch in otlp_binary.requests(content(self._path), LONGEST):
            if batch.rejected:
                raise Broken(batch.rejected[0].detail)
            for text in batch.texts:
                rest, gone, renamed = otlp_binary.without(text, lambda value: pruned(value, self._test))
                self.records, self.names = self.records + gone, self.names + renamed
                if rest:
                    self.left += 1
                    yield len(rest).to_bytes(4, "big") + rest if framed else rest


class _ParquetRewriter:
    """The same of Parquet, batch by batch: a row group may be larger than the memory."""

    def __init__(self, path: Path, test: RecordTest) -> None:
        self._path, self._test = path, test
        self.records = self.names = self.left = 0

    def changes(self) -> bool:
        if not _has(self._path, FileKind.PARQUET, self._test):
            return False
        for _, verdicts in self._judged(None):
            self.records += verdicts.count(Whose.THEIRS)
            self.names += verdicts.count(Whose.NAMES_THEM)
            self.left += len(verdicts) - verdicts.count(Whose.THEIRS)
        return bool(self.records or self.names)

    def write(self, stream: IO[bytes]) -> None:
        with pq.ParquetFile(self._path) as file:
            schema, groups, codec = file.schema_arrow, range(file.num_row_groups), _codec(file)
        with pq.ParquetWriter(stream, schema, compression=codec) as writer:
            for group in groups:
                pending: list[pa.Table] = [schema.empty_table()]
                for batch, verdicts in self._judged([group]):
                    pending.append(self._kept(batch, verdicts).cast(schema))
                    if sum(table.nbytes for table in pending) >= _GROUP:
                        writer.write_table(pa.concat_tables(pending))
                        pending = []
                if pending:
                    writer.write_table(pa.concat_tables(pending))

    def _judged(self, groups: list[int] | None) -> Iterator[tuple[Any, list[Whose]]]:
        with self._path.open("rb") as stream:
            for batch, _ in bounded(stream, groups):
                yield batch, [self._test.whose(row) for row in rows_of(batch)]

    def _kept(self, batch: Any, verdicts: list[Whose]) -> pa.Table:
        rest = batch.filter(pa.array([whose is not Whose.THEIRS for whose in verdicts], pa.bool_()))
        if Whose.NAMES_THEM in verdicts:
            rest = redacted_batch(rest, self._test.identifiers)
        return pa.Table.from_batches([rest])


def _codec(file: pq.ParquetFile) -> str:
    if not file.metadata.num_row_groups or not file.metadata.num_columns:
        return "none"
    codec = file.metadata.row_group(0).column(0).compression.lower()
    return "none" if codec == "uncompressed" else codec


def _compressed(path: Path, pieces: Iterator[bytes], stream: IO[bytes]) -> None:
    """Write pieces as the file is compressed now."""
    with path.open("rb") as old:
        head = old.read(4)
    if head.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
            packed.writelines(pieces)
    elif head == b"\x28\xb5\x2f\xfd":
        sink = pa.PythonFile(_KeptOpen(stream), "w")
        with pa.CompressedOutputStream(sink, "zstd") as packed:
            for piece in pieces:
                packed.write(piece)
    else:
        stream.writelines(pieces)


class _KeptOpen:
    """A stream that who compresses into it does not close."""

    closed = False

    def __init__(self, stream: IO[bytes]) -> None:
        self.write, self.flush = stream.write, stream.flush

    def close(self) -> None:
        self.flush()


def _dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _csv_row(values: Iterable[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(["" if value is None else value for value in values])
    return text.getvalue().encode()
