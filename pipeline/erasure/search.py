"""The search for what is left of a user: every file under the data root, decoded, for the ids that rows had.

Owns how a file is read: Parquet by column, gzip unpacked, anything else as bytes. Refuses weights: in them nobody can
look for a person, so models are blocked and not searched.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.storage import Store
from pipeline.traces.arrow import pc

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
    wanted = pa.array(sorted(ids))
    with pq.ParquetFile(path) as file:
        texts = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        for batch in file.iter_batches(columns=texts):
            if any(pc.any(pc.is_in(batch[name], wanted)).as_py() for name in texts):
                return True
    return False


def _blocks(path: Path) -> Iterator[bytes]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        try:
            while block := stream.read(BLOCK):
                yield block
        except (EOFError, zlib.error, gzip.BadGzipFile):  # a file that breaks off was searched to its end
            return
