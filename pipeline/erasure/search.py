"""The search for what is left of a user: every file under the data root, decoded, for the ids that rows had.

Owns how a file is read: Parquet by column, CSV and OTLP's protobuf by the sources' own decoders as well, anything else
as bytes, unpacked. Refuses weights: in them nobody can look for a person, so models are blocked and not searched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.storage import Store
from pipeline.traces.arrow import pc
from pipeline.traces.sources import csv_rows, otlp_binary
from pipeline.traces.sources.compression import Broken, decompressed
from pipeline.traces.sources.files import CSV, bare_name

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
BLOCK = 1 << 22
SHORT = 6
"""A shorter id is only looked for where JSON quotes it: as bare bytes it would be everywhere."""


class SearchResult(NamedTuple):
    files: int
    bytes: int
    remains: tuple[str, ...]
    """Names of the files that hold one of the ids."""


def search(store: Store, ids: Collection[str]) -> SearchResult:
    """Read everything under the data root but weights."""
    paths = [p for p in sorted(store.root.rglob("*")) if p.is_file() and p.suffix not in WEIGHTS]
    pattern = _pattern(ids)
    remains = [str(path.relative_to(store.root)) for path in paths if _holds(path, ids, pattern)]
    return SearchResult(len(paths), sum(path.stat().st_size for path in paths if path.exists()), tuple(remains))


def _pattern(ids: Collection[str]) -> re.Pattern[bytes]:
    """Each id as JSON writes it, and as a word of its own where it is long enough to mean something."""
    quoted = {json.dumps(id, ensure_ascii=ascii).encode() for id in ids for ascii in (True, False)}
    words = {id.encode() for id in ids if len(id) >= SHORT}
    parts = [re.escape(text) for text in sorted(quoted)]
    parts += [rb"(?<![A-Za-z0-9])" + re.escape(text) + rb"(?![A-Za-z0-9])" for text in sorted(words)]
    return re.compile(b"|".join(parts))


def _holds(path: Path, ids: Collection[str], pattern: re.Pattern[bytes]) -> bool:
    try:
        if path.suffix == ".parquet":
            return _in_columns(path, ids)
        longest = 6 * max(len(id) for id in ids) + 16  # of a match in JSON, every character escaped
        rest = b""
        for block in _blocks(path):
            if pattern.search(rest + block):
                return True
            rest = (rest + block)[-longest:]
        return False
    except FileNotFoundError:  # a lock or a staged file of a process that just ended
        return False


def _in_columns(path: Path, ids: Collection[str]) -> bool:
    wanted = pa.array([id.encode() for id in sorted(ids)], pa.binary())
    with pq.ParquetFile(path) as file:
        texts = [field.name for field in file.schema_arrow if _is_text(field.type)]
        for batch in file.iter_batches(columns=texts):
            # Strings may be stored as binary; compared so, one that is no UTF-8 does no harm.
            if any(pc.any(pc.is_in(batch[name].cast(pa.binary()), wanted)).as_py() for name in texts):
                return True
    return False


def _is_text(kind: pa.DataType) -> bool:
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(check(kind) for check in checks)


def _blocks(path: Path) -> Iterator[bytes]:
    """The content, and what its own decoder makes of it: there a value stands in quotes, whatever stood around it."""
    name = bare_name(path.name)
    try:
        yield from _content(path)
        if name.endswith(CSV):
            for batch in csv_rows.records(_content(path)):
                yield msgspec.json.encode([row for _, row in batch.records])
        elif otlp_binary.is_binary(name, _content(path))[0]:
            for batch in otlp_binary.requests(_content(path)):
                yield from _requests(batch.texts)
    except Broken:  # a file that breaks off was searched to its end
        return


def _content(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        yield from decompressed(iter(lambda: stream.read(BLOCK), b""), path.name)


def _requests(texts: Collection[bytes]) -> Iterator[bytes]:
    for text in texts:
        try:
            yield msgspec.json.encode(otlp_binary.decode(text))
        except ValueError:  # no request of OTLP: its bytes were searched
            continue
