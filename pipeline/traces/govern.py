"""The map: decodes one part of a source, puts it through the gates and stages it in bounded memory: the keys of every
row, and the rows that passed, block by block."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.recipe.traces import Traces
from pipeline.traces.arrow import pc
from pipeline.traces.batch import BatchBuilder
from pipeline.traces.erased import Forgotten, user_hash
from pipeline.traces.gates import GateRules, check
from pipeline.traces.records import UNKNOWN_DAY, Reason
from pipeline.traces.rows import SCHEMA, Rejection
from pipeline.traces.scores import Meanings, ScoreCount, StagedScores, scores_file
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, SourcePart, named_day

KEYS = pa.schema(
    [
        *(("part", pa.int32()), ("row", pa.int64()), ("line", pa.int64()), ("block", pa.int32())),
        *((name, pa.string()) for name in ("trace_id", "observation_id", "user_id", "model")),
        *((name, SCHEMA.field("timestamp").type) for name in ("timestamp", "updated_at")),
        *(("day", pa.date32()), ("content_key", pa.binary(16)), ("turn", pa.uint64())),
        *((name, pa.string()) for name in ("reason", "detail", "erased")),
    ]
)
"""`row` counts the rows of a part from 0, `block` the batches of those that passed; `erased` is the hash of a forgotten
user; a null `day` is an unknown one."""
PASSED = pa.schema([("row", pa.int64()), *(field for field in SCHEMA if not field.name.startswith("feedback"))])
"""Columns of the table, but for the feedback, which is joined to the rows that are admitted."""
SAMPLES = 3
"""Rejections of a part with a detail for people, per reason."""
BROKEN_OFF = {Reason.TRUNCATED_FILE, Reason.TOO_LARGE}


class GovernTask(NamedTuple):
    """One part to govern."""

    address: Address
    part: SourcePart
    place: int
    folder: Path
    settings: Traces
    now: datetime
    erased: Forgotten


class GovernedPart(NamedTuple):
    """`days`: those that have rows of the part, and the day in its name. Not `whole`: the part broke off."""

    place: int
    sha256: str
    days: frozenset[str]
    rows: int
    whole: bool
    scores: tuple[ScoreCount, ...] = ()


def keys_file(folder: Path, place: int) -> Path:
    return folder / f"{place}.parquet"


def passed_file(folder: Path, place: int) -> Path:
    return folder / f"{place}.arrow"


def govern_part(task: GovernTask) -> GovernedPart:
    """Decode, judge and stage a part. Raises ValueError when the source cannot be read at all."""
    digest = hashlib.sha256()
    batcher = BatchBuilder(task.settings, task.part.name)
    rules = GateRules(task.settings, task.now, task.erased)
    rows, whole = 0, True
    scores = StagedScores(scores_file(task.folder, task.place), task.place, Meanings(task.settings.scores))
    with _Staged(task) as staged, scores:
        for block in open_source(task.address).rows(task.part, digest):
            batch, unfit = batcher.batch(block.traces)
            staged.write(*check(batch, rules))
            staged.reject([*block.rejected, *unfit])
            scores.write(block.scores)
            rows += len(block.traces) + len(block.rejected) + len(block.scores)
            whole = whole and not BROKEN_OFF & {rejection.reason for rejection in block.rejected}
    if task.part.holds == "calls" and not staged.days:
        staged.days.add(UNKNOWN_DAY)  # a part without a row and a day is accounted for, too
    counts = tuple(scores.counts.all())
    return GovernedPart(task.place, digest.hexdigest(), frozenset(staged.days), rows, whole, counts)


class _Staged:
    def __init__(self, task: GovernTask) -> None:
        self._task = task
        # Nearly every value is another one and is read once or twice: encoding and compressing them costs more.
        plain: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": ["day"]}
        self._keys = pq.ParquetWriter(keys_file(task.folder, task.place), KEYS, **plain)
        self._passed = pa.ipc.new_file(str(passed_file(task.folder, task.place)), PASSED)
        self._blocks = 0
        self._named_day = named_day(task.part.name)
        self._rows = 0
        self._details = Counter[Reason]()
        self.days = {self._named_day} if self._named_day else set[str]()  # a file of no rows still proves its day empty

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._keys.close()
        self._passed.close()

    def write(self, batch: pa.RecordBatch, reasons: Sequence[Reason | None]) -> None:
        """Stage a `batch.BATCH`: of rejected rows the keys alone, without user and model."""
        if not batch.num_rows:
            return
        passed = np.array([reason is None for reason in reasons])
        named = pc.and_(pc.not_equal(batch["trace_id"], ""), pc.not_equal(batch["observation_id"], ""))
        details = [
            None if reason is None or not self._is_detailed(reason) else _seen(self._task.settings, batch, row, reason)
            for row, reason in enumerate(reasons)
        ]
        columns: dict[str, Any] = {name: batch[name] for name in KEYS.names if name in batch.schema.names}
        columns |= {name: pc.if_else(pa.array(passed), batch[name], None) for name in ("user_id", "model")}
        columns["observation_id"] = pc.if_else(named, batch["observation_id"], None)  # without one it equals no other
        columns |= {"reason": list(reasons), "detail": details}
        columns["block"] = pa.repeat(pa.scalar(self._blocks, pa.int32()), batch.num_rows)
        if Reason.ERASED in reasons:
            users = zip(batch["user_id"].to_pylist(), reasons, strict=True)
            columns["erased"] = [user_hash(user) if reason is Reason.ERASED else None for user, reason in users]
        rows = batch if passed.all() else batch.filter(pa.array(passed))
        arrays = [rows[name] for name in PASSED.names[1:]]
        arrays = [pa.array(self._rows + np.flatnonzero(passed)), *arrays]
        self._passed.write_batch(pa.RecordBatch.from_arrays(arrays, schema=PASSED))
        self._blocks += 1
        self._append(columns, batch.num_rows)
        self.days.update(day.isoformat() for day in pc.unique(batch["day"]).to_pylist())

    def reject(self, rejected: Sequence[Rejection]) -> None:
        if not rejected:
            return
        days = [rejection.day or self._named_day for rejection in rejected]
        columns = {
            "line": [r.line for r in rejected],
            "trace_id": [r.trace_id for r in rejected],
            "day": [date.fromisoformat(day) if day else None for day in days],
            "reason": [r.reason for r in rejected],
            "detail": [r.detail if self._is_detailed(r.reason) else None for r in rejected],
        }
        self._append(columns, len(rejected))
        self.days.update(day or UNKNOWN_DAY for day in days)

    def _append(self, columns: dict[str, Any], rows: int) -> None:
        columns["part"] = pa.repeat(pa.scalar(self._task.place, pa.int32()), rows)
        columns["row"] = pa.array(np.arange(self._rows, self._rows + rows))
        self._rows += rows
        arrays = [
            pa.nulls(rows, field.type) if (values := columns.get(field.name)) is None
            else values if isinstance(values, pa.Array) else pa.array(values, field.type)
            for field in KEYS
        ]  # fmt: skip
        self._keys.write_table(pa.Table.from_arrays(arrays, schema=KEYS))

    def _is_detailed(self, reason: Reason) -> bool:
        self._details[reason] += 1
        return self._details[reason] <= SAMPLES


def _seen(settings: Traces, batch: pa.RecordBatch, row: int, reason: Reason) -> str:
    """What was seen instead of what should be, without a word of the trace's text."""

    def of(name: str) -> Any:
        return batch[name][row].as_py()

    match reason:
        case Reason.CONSENT:
            return _annotation(settings.consent_key, of("consent_said"))
        case Reason.REGION:
            seen = _annotation(settings.region_key, of("region_said"))
            return f"{seen}, and traces.regions_allowed is {', '.join(settings.regions) or 'empty'}"
        case Reason.CONFIDENTIAL:
            return _annotation(settings.confidential_key, of("confidential_said"))
        case Reason.LATENCY:
            return f"{of('latency_s'):g} s"
        case Reason.TRUNCATED:
            return f"finish_reason {of('finish_reason')}"
        case Reason.FUTURE:
            return f"dated {of('timestamp'):%Y-%m-%d %H:%M} UTC"
        case Reason.SCHEMA:
            empty = [name for name in ("trace_id", "observation_id", "model") if not of(name)]
            return f"without {', '.join(empty)}" if empty else "no user message, or a role that no chat has"
        case Reason.HELPER:
            return "by its name it is no answer: traces.answers says which calls are"
        case Reason.UNREADABLE | Reason.NO_CONTENT:
            return of("unreadable" if reason is Reason.UNREADABLE else "not_recorded")
        case Reason.PII:
            return "an image, audio or file" if of("has_payload") else "text that cannot be searched for personal data"
        case _:
            return ""


def _annotation(key: str, value: str | None) -> str:
    if value is None:
        return f"{key} is absent"
    return (
        f"{key} is {value!r}" if value.isascii() and value.isalnum() and len(value) <= 8 else f"{key} is something else"
    )
