"""Sketches of governed days, kept between runs: a day that is made again computes only those of texts that are new.

A sketch is what `near_duplicates` computes of a text, the dearest part of that search; its place is the text's digest.
Owns the files, one a day: the number of rows, their digests, their sketches. Refuses to be needed: a file that is not
there, was cut, or is of another version of the sketch costs time and changes no row. They are of masked text and of
admitted rows alone; erasure removes them all and retention those of its days.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pipeline.traces import near_duplicates
from pipeline.traces.near_duplicates import KEYS, band_keys

DIGEST = 2
"""64-bit words of a text's digest."""
WORD = np.dtype("<u8")
OPEN_DAYS = 4
"""Days whose digests a worker holds at once, at 40 bytes a row."""
ROWS = 50_000


class Sketched(NamedTuple):
    """Of each row the digest of its text and its sketch; null for a row that has none."""

    texts: pa.Array
    bands: pa.Array


def folder_name() -> str:
    """All that a sketch depends on beside its text. rensa 0.5 gives others than 0.4 did."""
    of = near_duplicates
    return f"rensa-{version('rensa')}-{of.WORDS}-{of.SLOTS}-{of.BANDS}-{of.SEED}"


class KeptSketches:
    """What is kept of the days below `root`, and the sketches of whatever is asked for."""

    def __init__(self, root: Path) -> None:
        self._folder = root / folder_name()
        self._days: dict[str, _SketchedDay | None] = {}  # the least recently used first
        self.computed = 0
        """Sketches that were not kept."""

    def sketch(self, days: list[str], texts: pa.Array) -> Sketched:
        """The sketches of texts, of which each is of a day (YYYY-MM-DD)."""
        data = b"".join(map(xxhash.xxh3_128_digest, texts.cast(pa.binary()).to_pylist()))
        digests = np.frombuffer(data, WORD).reshape(-1, DIGEST)
        keys, unknown = np.empty((len(digests), KEYS), WORD), np.ones(len(digests), bool)
        of_day = np.array(days)
        for day in dict.fromkeys(days):
            if (kept := self._day(day)) is not None:
                own = np.flatnonzero(of_day == day)
                places = kept.places(digests[own])
                hits = np.flatnonzero(places >= 0)
                keys[own[hits]] = kept.keys(places[hits])
                unknown[own[hits]] = False
        new = np.flatnonzero(unknown)
        if len(new):
            keys[new] = band_keys(texts.take(pa.array(new))).flatten().to_numpy().reshape(-1, KEYS)
        self.computed += len(new)
        bands = pa.FixedSizeListArray.from_arrays(pa.array(keys.reshape(-1)), KEYS)
        column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(days), [None, pa.py_buffer(data)])
        return Sketched(column, bands)

    def _day(self, day: str) -> _SketchedDay | None:
        if day not in self._days and len(self._days) >= OPEN_DAYS:
            self._days.pop(next(iter(self._days)))
        kept = self._days.pop(day) if day in self._days else _opened(_path(self._folder, day))
        self._days[day] = kept
        return kept


class _SketchedDay:
    """A day's file. Sketches are mapped only while some are copied: mapped pages would count as memory held."""

    def __init__(self, path: Path, rows: int) -> None:
        self._path, self._rows = path, rows
        digests = np.fromfile(path, WORD, rows * DIGEST, offset=WORD.itemsize).reshape(-1, DIGEST)
        self._order = np.argsort(digests[:, 0], kind="stable")
        self._digests = digests[self._order]

    def places(self, digests: np.ndarray) -> np.ndarray:
        """The row of each digest, -1 where there is none. Of rows that share their first half one is looked at."""
        at = np.minimum(np.searchsorted(self._digests[:, 0], digests[:, 0]), self._rows - 1)
        return np.where((self._digests[at] == digests).all(axis=1), self._order[at], -1)

    def keys(self, rows: np.ndarray) -> np.ndarray:
        offset = WORD.itemsize * (1 + DIGEST * self._rows)
        return np.array(np.memmap(self._path, WORD, "r", offset, (self._rows, KEYS))[rows])


def write_sketches(rows: Path, path: Path) -> None:
    """A day's file from Parquet with the columns `text` and `bands`. Raises OSError."""
    with pq.ParquetFile(rows) as source, path.open("wb") as out:
        out.write(np.array([source.metadata.num_rows], WORD).tobytes())
        for column in ("text", "bands"):
            for batch in source.iter_batches(ROWS, columns=[column]):
                values = batch[column]
                if column == "text":
                    out.write(b"".join(values.to_pylist()))
                else:
                    out.write(values.flatten().to_numpy().astype(WORD, copy=False).tobytes())
        out.flush()
        os.fsync(out.fileno())


def keep(root: Path, day: str, path: Path) -> None:
    """Put a file of `write_sketches` in the place of what was kept of the day; other versions' files go."""
    folder = root / folder_name()
    folder.mkdir(parents=True, exist_ok=True)
    for other in root.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    path.replace(_path(folder, day))


def forget(root: Path, days: Iterable[str] | None = None) -> None:
    """Remove what is kept of `days`, of all days by default."""
    if days is None:
        shutil.rmtree(root, ignore_errors=True)
    else:
        for folder in root.glob("*"):
            for day in days:
                _path(folder, day).unlink(missing_ok=True)


def _path(folder: Path, day: str) -> Path:
    return folder / f"{day}.bin"


def _opened(path: Path) -> _SketchedDay | None:
    try:
        rows = int(np.fromfile(path, WORD, 1)[0])
        whole = path.stat().st_size == WORD.itemsize * (1 + rows * (DIGEST + KEYS))
        return _SketchedDay(path, rows) if rows and whole else None
    except (OSError, IndexError, ValueError):
        return None
