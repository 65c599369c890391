"""Near duplicates: MinHash over five-word shingles, banded for the search and kept for the check.

Owns signatures and clusters. Refuses to decide what becomes of a near duplicate: the recipe says whether it is counted
or dropped. A row's keys depend on its text alone and its cluster on the rows alone, not on their order.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.traces.arrow import pc

WORDS = 5
"""Words of a shingle. A shorter text is one shingle."""
SLOTS, BANDS = 128, 16
"""Two texts of Jaccard similarity s share a band of 8 slots with probability 1 - (1 - s^8)^16: 0.9999 at 0.9, 0.95
at 0.8, 0.06 at 0.5."""
KEYS = BANDS + SLOTS // 8
"""Values of a row: a key for each band, then the signature itself, eight bits of a slot, eight slots to a value."""
SEED = 7
AT_ONCE = 64
"""Texts whose values rensa gives at once: they come as Python integers, and so many stay in the processor's cache."""
_CJK = r"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}])"


def band_keys(texts: Sequence[str] | pa.Array) -> pa.FixedSizeListArray:
    """`KEYS` unsigned 64-bit integers a text, the same in every process and on every machine. Null counts as empty."""
    slots = _slots(*_shingles(pa.array(texts, pa.string())))
    bands = _mixed(list(np.moveaxis(slots.astype(np.uint64).reshape(-1, BANDS, SLOTS // BANDS), 2, 0)))
    bands ^= np.arange(BANDS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # a band meets only its own kind
    signature = np.ascontiguousarray(slots.astype(np.uint8)).view("<u8")
    keys = np.concatenate([bands, signature.astype(np.uint64)], axis=1)
    return pa.FixedSizeListArray.from_arrays(pa.array(keys.reshape(-1)), KEYS)


def _slots(flat: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """MinHash of each text's shingles: a row of SLOTS values."""
    import rensa

    sketch: Any = rensa
    slots = array("I")
    for first in range(0, len(offsets) - 1, AT_ONCE):
        own = offsets[first : first + AT_ONCE + 1]
        matrix = sketch.RMinHash.digest_matrix_from_flat_token_hashes(flat[own[0] : own[-1]], own - own[0], SLOTS, SEED)
        for row in matrix.to_rows():
            slots.fromlist(row)
    return np.frombuffer(slots, np.uint32).reshape(-1, SLOTS)


def _shingles(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """64-bit hashes of all texts' shingles, and where each text's begin."""
    spaced = pc.replace_substring_regex(pc.fill_null(texts, ""), _CJK, r" \1 ")
    words = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(spaced))
    coded = words.flatten().dictionary_encode()
    different: list[str] = pc.utf8_lower(coded.dictionary).to_pylist()  # each word once, not wherever it stands
    known = np.fromiter(map(_hash, different), np.uint64, len(different))
    hashes = known[coded.indices.to_numpy()]
    counts = pc.list_value_length(words).to_numpy().astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)])
    shingles = np.maximum(counts - WORDS + 1, 1)
    offsets = np.concatenate([[0], np.cumsum(shingles)])
    padded = np.append(hashes, np.zeros(WORDS, np.uint64))
    whole = _mixed([padded[place : place + len(hashes)] for place in range(WORDS)])
    flat = np.append(whole, np.uint64(0))[np.repeat(starts[:-1] - offsets[:-1], shingles) + np.arange(offsets[-1])]
    short = np.flatnonzero(counts < WORDS)  # their one shingle ends with the text and not in the next one
    places = starts[short, None] + np.arange(WORDS)
    words = np.where(places < starts[short + 1, None], padded[places], np.uint64(0))
    flat[offsets[short]] = _mixed(list(words.T))
    return flat, offsets.astype(np.uint64)


def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def _mixed(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Columns hashed into one, their order included: multiply and xor, then the finaliser of SplitMix64."""
    mixed = np.zeros(columns[0].shape, np.uint64)
    for column in columns:
        mixed ^= column
        mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def clusters(bands: Sequence[Path], similarity: float, memory_mb: int = 512, scratch: Path | None = None) -> pa.Table:
    """Rows that are near duplicates of another: `part`, `row`, `cluster`, sorted, from Parquet of (part, row, bands).

    A row whose estimated similarity to a row that shares a band with it reaches `similarity` is in that row's cluster.
    Compared is each with one row of its band, so that work grows with rows, not with pairs. DuckDB spills to `scratch`
    above `memory_mb`; the links found are held in memory (about 200 bytes a near duplicate).
    """
    import duckdb

    with duckdb.connect() as engine:
        engine.execute(f"SET memory_limit = '{memory_mb}MB'")
        engine.execute("SET preserve_insertion_order = false")
        if scratch is not None:
            engine.execute("SET temp_directory = $1", [str(scratch)])
        relation = engine.sql(_PAIRS, params={"files": [str(path) for path in bands], "bands": BANDS})
        assert relation is not None
        links = _Links()
        for batch in relation.to_arrow_reader(10_000):
            for one, other in _alike(batch, similarity):
                links.join(one, other)
    return links.table()


_PAIRS = """
WITH rows AS (SELECT part, row, bands, hash(bands) AS id FROM read_parquet($files)),
keys AS (SELECT part, row, id, unnest(bands[1:$bands]) AS key FROM rows),
shared AS (SELECT key, min({'id': id, 'part': part, 'row': row}) AS first FROM keys GROUP BY key HAVING count(*) > 1),
pairs AS (
    SELECT DISTINCT first.part AS part_a, first.row AS row_a, k.part AS part_b, k.row AS row_b
    FROM keys k JOIN shared s ON s.key = k.key WHERE (k.part, k.row) != (s.first.part, s.first.row)
)
SELECT part_a, row_a, part_b, row_b, a.id AS id_a, b.id AS id_b, a.bands AS bands_a, b.bands AS bands_b
FROM pairs JOIN rows a ON a.part = part_a AND a.row = row_a JOIN rows b ON b.part = part_b AND b.row = row_b
"""

Row = tuple[int, int, int]
"""Digest of the keys, part, row."""


def _alike(batch: pa.RecordBatch, similarity: float) -> list[tuple[Row, Row]]:
    """The pairs of a batch whose signatures agree in enough slots; eight bits agree by chance once in 256."""
    signatures = [_signatures(batch.column(name)) for name in ("bands_a", "bands_b")]
    agree = (signatures[0] == signatures[1]).mean(axis=1)
    enough = (agree - 1 / 256) / (1 - 1 / 256) >= similarity
    kept: Any = batch.filter(pa.array(enough)).to_pydict()
    ones = zip(kept["id_a"], kept["part_a"], kept["row_a"], strict=True)
    return list(zip(ones, zip(kept["id_b"], kept["part_b"], kept["row_b"], strict=True), strict=True))


def _signatures(column: pa.Array) -> np.ndarray:
    keys = np.ascontiguousarray(column.flatten().to_numpy().reshape(-1, KEYS)[:, BANDS:])
    return keys.astype("<u8").view(np.uint8).reshape(len(keys), SLOTS)


class _Links:
    """Union-find over the rows that have a near duplicate."""

    def __init__(self) -> None:
        self.above: dict[Row, Row] = {}

    def root(self, row: Row) -> Row:
        path: list[Row] = []
        while (above := self.above.setdefault(row, row)) != row:
            path.append(row)
            row = above
        for passed in path:
            self.above[passed] = row
        return row

    def join(self, one: Row, other: Row) -> None:
        """The smaller root stays on top, so a cluster's name does not depend on the order of its links."""
        low, high = sorted((self.root(one), self.root(other)))
        self.above[high] = low

    def table(self) -> pa.Table:
        rows = sorted((row[1], row[2], self.root(row)[0]) for row in list(self.above))
        part, row, cluster = zip(*rows, strict=True) if rows else ((), (), ())
        columns = [pa.array(part, pa.int32()), pa.array(row, pa.int64()), pa.array(cluster, pa.uint64())]
        return pa.table(columns, names=["part", "row", "cluster"])
