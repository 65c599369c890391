"""Staged rows of a part: `<part>/<day>.<n>.arrow` has the masked rows that passed the gates, `<day>.<n>.keys.parquet`
a line for every row, with its keys or the reason against it. No file has a rejected row's text."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.traces.arrow import pc
from pipeline.traces.erased import user_hash
from pipeline.traces.records import UNKNOWN_DAY, Reason
from pipeline.traces.rows import SCHEMA, Rejection

KEYS = pa.schema(
    [
        pa.field("part", pa.int32(), nullable=False),
        pa.field("row", pa.int64()),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("trace_id", pa.string()),
        pa.field("observation_id", pa.string()),
        pa.field("user_id", pa.string()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("updated_at", pa.timestamp("us", tz="UTC")),
        pa.field("content_key", pa.binary(16)),
        pa.field("turn", pa.uint64()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("erased", pa.string()),
    ]
)
"""`row` counts the staged rows of the part's day from 0, in the order of their file; null where none is staged.
`erased` is the user's hash."""
Explain = Callable[[pa.RecordBatch, int, Reason], str]
"""What was seen in a row instead of what should be, without a word of its text."""
MAX_OPEN = 16
"""Days whose files are open at once; a part with more of them gets several files a day."""
SAMPLES = 3
"""Rejections of a part with a detail in words, per reason."""
ROW_GROUP_ROWS = 25_000


def staged_files(folder: Path, index: int, day: str, files: int) -> list[tuple[Path, Path]]:
    """Pairs of row file and key file of a part's day, in the order of their rows."""
    return [
        (folder / f"{index}" / f"{day}.{n}.arrow", folder / f"{index}" / f"{day}.{n}.keys.parquet")
        for n in range(files)
    ]


class _Day:
    def __init__(self, rows: Path, keys: Path) -> None:
        self._rows = pa.ipc.new_file(str(rows), SCHEMA)  # compressing what is read once costs more than the disk
        # Nearly every value is another one and is read once or twice: encoding and compressing them costs more.
        self._keys = pq.ParquetWriter(keys, KEYS, compression="none", use_dictionary=False, write_statistics=False)
        self._held: list[pa.RecordBatch] = []
        self._count = 0

    def write(self, rows: pa.RecordBatch | None, keys: pa.RecordBatch) -> None:
        if rows is not None:
            self._rows.write_batch(rows)
        self._held.append(keys)
        self._count += keys.num_rows
        if self._count >= ROW_GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._keys.write_table(pa.Table.from_batches(self._held))
        self._held, self._count = [], 0

    def close(self) -> None:
        self._flush()
        self._rows.close()
        self._keys.close()


class StagedDays:
    def __init__(self, folder: Path, part: int, named_day: str | None, only: frozenset[str] | None) -> None:
        self._folder, self._part, self._named_day, self._only = folder, part, named_day, only
        shutil.rmtree(folder / str(part), ignore_errors=True)  # of an attempt that was killed
        (folder / str(part)).mkdir(parents=True)
        self._open: dict[str, _Day] = {}
        self._staged: Counter[str] = Counter()
        self._told: Counter[Reason] = Counter()
        self._empty = True
        self.files: Counter[str] = Counter()

    def __enter__(self) -> Self:
        if self._named_day is not None and self._wanted(self._named_day):
            self._day(self._named_day)  # a file of no rows still proves its day empty
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        for day in self._open.values():
            day.close()

    def write(self, batch: pa.RecordBatch, reasons: Sequence[Reason | None], explain: Explain) -> None:
        """Stage the rows of a `batch.BATCH` that passed, and the keys of all."""
        if not batch.num_rows:
            return
        self._empty = False
        details: list[str | None] = [None] * batch.num_rows
        for row, reason in enumerate(reasons):
            if reason is not None and self._tell(reason):
                details[row] = explain(batch, row, reason)
        keys = _keys(self._part, batch, reasons, details)
        passed = pa.array([reason is None for reason in reasons], pa.bool_())
        batch = batch.select(SCHEMA.names)
        days = batch["day"].dictionary_encode()
        for code, date in enumerate(days.dictionary.to_pylist()):
            day = date.isoformat()
            if not self._wanted(day):
                continue
            own = pc.equal(days.indices, code)
            lines, rows = keys.filter(own), batch.filter(pc.and_(passed, own))
            numbers = pa.array(np.arange(self._staged[day], self._staged[day] + rows.num_rows))
            row = pc.replace_with_mask(pa.nulls(len(lines), pa.int64()), lines["reason"].is_null(), numbers)
            self._day(day).write(rows, lines.set_column(1, KEYS.field("row"), row))
            self._staged[day] += rows.num_rows

    def reject(self, rejected: Iterable[Rejection]) -> None:
        by_day: dict[str, list[Rejection]] = {}
        for rejection in rejected:
            self._empty = False
            by_day.setdefault(rejection.day or self._named_day or UNKNOWN_DAY, []).append(rejection)
        for day, rows in by_day.items():
            if not self._wanted(day):
                continue
            columns: dict[str, Any] = {
                "part": [self._part] * len(rows),
                "line": [r.line for r in rows],
                "trace_id": [r.trace_id for r in rows],
                "reason": [str(r.reason) for r in rows],
                "detail": [r.detail if self._tell(r.reason) else None for r in rows],
            }
            self._day(day).write(None, _record_batch(columns, len(rows)))

    def prove_empty(self) -> None:
        """Account for a part that names no day and held no row."""
        if self._empty and not self.files and self._wanted(UNKNOWN_DAY):
            self._day(UNKNOWN_DAY)

    def _day(self, day: str) -> _Day:
        if day not in self._open:
            if len(self._open) >= MAX_OPEN:
                oldest = next(iter(self._open))
                self._open.pop(oldest).close()
            rows, keys = staged_files(self._folder, self._part, day, self.files[day] + 1)[-1]
            self._open[day] = _Day(rows, keys)
            self.files[day] += 1
        return self._open[day]

    def _wanted(self, day: str) -> bool:
        return self._only is None or day in self._only

    def _tell(self, reason: Reason) -> bool:
        self._told[reason] += 1
        return self._told[reason] <= SAMPLES


def _keys(
    part: int, batch: pa.RecordBatch, reasons: Sequence[Reason | None], details: list[str | None]
) -> pa.RecordBatch:
    named = pc.and_(pc.not_equal(batch["trace_id"], ""), pc.not_equal(batch["observation_id"], ""))
    columns: dict[str, Any] = {
        "part": pa.repeat(pa.scalar(part, pa.int32()), batch.num_rows),
        "line": batch["line"],
        **{name: batch[name] for name in ("trace_id", "timestamp", "updated_at")},
        # A row without an id is compared with no other.
        "observation_id": pc.if_else(named, batch["observation_id"], None),
        "content_key": batch["content_key"],
        "turn": batch["turn"],
        # Only rows that passed are compared by user, and only theirs are surely masked.
        "user_id": pc.if_else(pa.array([r is None for r in reasons]), batch["user_id"], None),
        "reason": reasons,  # a StrEnum is its text
        "detail": details,
    }
    if Reason.ERASED in reasons:
        users = zip(batch["user_id"].to_pylist(), reasons, strict=True)
        columns["erased"] = [user_hash(user) if reason is Reason.ERASED else None for user, reason in users]
    return _record_batch(columns, batch.num_rows)


def _record_batch(columns: dict[str, Any], rows: int) -> pa.RecordBatch:
    arrays = [
        pa.nulls(rows, f.type) if (column := columns.get(f.name)) is None
        else column if isinstance(column, pa.Array) else pa.array(column, f.type)
        for f in KEYS
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(arrays, schema=KEYS)
