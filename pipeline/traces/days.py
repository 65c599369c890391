"""Makes days of staged rows. Days are compared and written in parallel, and published one by one: data files, commit,
audit entry, ledger of rejected rows, report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core import audit, layout
from pipeline.core.storage import digest_json, write_atomically
from pipeline.recipe.traces import PromptsSource, Traces
from pipeline.traces.deduplicate import DayInput, DayOutcome, deduplicate
from pipeline.traces.engine import Engine
from pipeline.traces.gates import VERSION
from pipeline.traces.lake import LakeConfig
from pipeline.traces.lake.files import write_files
from pipeline.traces.reading import Reading, Session
from pipeline.traces.records import UNKNOWN_DAY, DayReport, FileReport, Reason, day_digest, total
from pipeline.traces.rows import SCHEMA
from pipeline.traces.staging import staged_files


def rules_digest(settings: Traces) -> str:
    """Digest of all that decides whether a row is admitted."""
    elsewhere = {"source", "window_days", "attribution", "min_admitted_share", "lake", "retention"}
    rules = settings.model_dump(mode="json", exclude=elsewhere)
    rules["regions_allowed"] = settings.regions
    if settings.reader != "langfuse_export":  # the first reader: days that it made keep their digest
        rules["reader"] = settings.reader
    if isinstance(settings.source, PromptsSource):  # it says what is read of a file, and what stands in every row
        rules["prompts"] = settings.source.model_dump(mode="json", exclude={"uri"})
    return digest_json([VERSION, rules])


def kept_from(settings: Traces, now: datetime) -> str:
    days = settings.retention.governed_days
    return "" if days is None else (now.date() - timedelta(days=days)).isoformat()


class DayWriter:
    def __init__(self, session: Session, engine: Engine, lake: LakeConfig, rules: str, memory_mb: int) -> None:
        self._session, self._engine, self._lake, self._rules = session, engine, lake, rules
        self._memory_mb = memory_mb

    def make(
        self, reading: Reading, days: Iterable[str], allow: Callable[[Sequence[DayReport]], None]
    ) -> dict[int, set[str]]:
        """Bring each day up to date: its rows in the table, its report and its ledger.

        `allow` gets the new reports and may raise before anything is published. Returns the days that each part of
        scores or attributes is about.
        """
        kept = [day for day in sorted(days) if day >= kept_from(self._session.settings, self._session.now)]
        cases = [case for day in kept if (case := self._case(reading, day)).keys]
        judged = [v for _, v in zip(cases, self._engine.map(deduplicate, cases, self._session.log), strict=True)]
        reports = {v.day: self._report(reading, v) for v in judged if v.day not in reading.sealed}
        allow(list(reports.values()))
        due: list[tuple[DayOutcome, list[DayShard]]] = []
        for verdict in judged:
            report = reports.get(verdict.day)
            if report is None:
                self._late(reading, verdict)
            elif self._is_current(report):
                self._session.log(f"traces: {report.day} is up to date ({report.admitted:,} of {report.seen:,} rows)")
            else:
                due.append((verdict, self._shards(reading, verdict, report)))
        written = self._engine.map(write_shard, [shard for _, shards in due for shard in shards], self._session.log)
        for verdict, shards in due:
            self._publish(verdict, reports[verdict.day], [uri for _ in shards for uri in next(written)])
        about: dict[int, set[str]] = {}
        for verdict in judged:
            for index in verdict.annotated_by:
                about.setdefault(index, set()).add(verdict.day)
        return about

    def _case(self, reading: Reading, day: str) -> DayInput:
        """What was read of a day; of a sealed one, only what is new."""
        keys: list[Path] = []
        for index, done in sorted(reading.governed.items()):
            keys += [key for _, key in staged_files(reading.folder, index, day, done.days.get(day, 0))]
        return DayInput(
            day=day,
            keys=tuple(keys),
            names={n: part.name for n, part in reading.parts.items()},
            folder=reading.folder / "days" / day,
            scores=reading.scores,
            attributes=reading.attributes,
            memory_mb=self._memory_mb,
        )

    def _publish(self, verdict: DayOutcome, report: DayReport, files: list[str]) -> None:
        store, lake, day = self._session.store, self._session.lake, report.day
        if day != UNKNOWN_DAY:  # rows of no known day are never in the table
            lake.replace_day(day, files, report.digest)
        counts = {"seen": report.seen, "admitted": report.admitted, "digest": report.digest, "snapshot": lake.snapshot}
        audit.record(store, "admission", day, counts, self._session.now)
        write_atomically(store.path(layout.rejected_rows(day)), verdict.ledger.read_bytes())
        store.write(layout.day_report(day), report)  # last: a day without its report is made again
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in report.rejected.items())
        self._session.log(
            f"traces: {day} governed: {report.admitted:,} of {report.seen:,} rows; rejected: {reasons or 'none'}"
        )

    def _is_current(self, report: DayReport) -> bool:
        published = self._session.store.read(layout.day_report(report.day), DayReport)
        governed = report.day == UNKNOWN_DAY or self._session.lake.digests().get(report.day) == report.digest
        return published is not None and published.digest == report.digest and governed

    def _report(self, reading: Reading, verdict: DayOutcome) -> DayReport:
        indices = {n for n, done in reading.governed.items() if verdict.day in done.days} | set(verdict.annotated_by)
        files = {reading.parts[n].name: n for n in sorted(indices)}
        sha256 = {name: reading.governed[n].sha256 for name, n in files.items()}
        reports = [
            _file_report(name, sha256[name], reading.parts[n].size, verdict.counts.get(n, Counter()))
            for name, n in files.items()
        ]
        entries = map(self._session.erased.entry_of_hash, verdict.erased)
        erased = tuple(sorted(entry.proof for entry in entries if entry is not None))
        return _day_report(verdict.day, self._rules, sha256, erased, reports)

    def _shards(self, reading: Reading, verdict: DayOutcome, report: DayReport) -> list[DayShard]:
        return [
            DayShard(
                lake=self._lake,
                day=report.day,
                name=f"{report.digest[:16]}-{index}",
                folder=reading.folder,
                place=index,
                files=reading.governed[index].days[report.day],
                admitted=verdict.admitted,
                feedback=verdict.feedback,
            )
            for index in sorted(verdict.counts)
            if verdict.counts[index][None]
        ]

    def _late(self, reading: Reading, verdict: DayOutcome) -> None:
        """Count the rows that came after their day's raw data was deleted."""
        name = layout.day_report(verdict.day)
        published = self._session.store.read(name, DayReport)
        assert published is not None, f"{verdict.day} is sealed and has no report"
        files = {file.name: file for file in published.files}
        for index, counts in verdict.counts.items():
            part = reading.parts[index]
            if part.name in files:  # exported once more: its rows are accounted for
                continue
            late: Counter[Reason | None] = Counter({Reason.LATE: counts.total()})
            files[part.name] = _file_report(part.name, reading.governed[index].sha256, part.size, late)
        self._session.log(f"traces: {verdict.day} is sealed, its raw data is past retention; late rows stay out")
        new_report = _day_report(verdict.day, published.rules, {}, published.erased, list(files.values()))
        self._session.store.write(name, new_report.model_copy(update={"digest": published.digest}))


def _file_report(name: str, sha256: str, size: int, counts: Counter[Reason | None]) -> FileReport:
    rejected = total([{reason: rows for reason, rows in counts.items() if reason is not None}])
    return FileReport(
        name=name, sha256=sha256, bytes=size, seen=counts.total(), admitted=counts[None], rejected=rejected
    )


def _day_report(
    day: str, rules: str, sha256: Mapping[str, str], erased: tuple[str, ...], files: list[FileReport]
) -> DayReport:
    return DayReport(
        day=day,
        rules=rules,
        digest=day_digest(rules, sha256, erased),
        files=tuple(files),
        seen=sum(f.seen for f in files),
        admitted=sum(f.admitted for f in files),
        rejected=total(f.rejected for f in files),
        erased=erased,
    )


class DayShard(NamedTuple):
    lake: LakeConfig
    day: str
    name: str
    folder: Path
    place: int
    files: int
    admitted: Path
    feedback: Path | None


def write_shard(shard: DayShard) -> list[str]:
    """URIs of the data files with the shard's admitted rows. Raises OSError when they cannot be written."""
    return write_files(shard.lake, shard.day, shard.name, _batches(shard))


def _batches(shard: DayShard) -> Iterator[pa.RecordBatch]:
    own = [("part", "=", shard.place)]
    rows = pq.read_table(shard.admitted, columns=["row"], filters=own)["row"].to_numpy()
    feedback: dict[int, dict[str, Any]] = {}
    if shard.feedback is not None:
        feedback = {line["row"]: line for line in pq.read_table(shard.feedback, filters=own).to_pylist()}
    offset = 0
    for path, _ in staged_files(shard.folder, shard.place, shard.day, shard.files):
        with pa.OSFile(str(path)) as source:  # mapped pages would count as memory of the process
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                first, last = np.searchsorted(rows, [offset, offset + batch.num_rows])
                wanted = rows[first:last] - offset
                if len(wanted):
                    taken = batch if len(wanted) == batch.num_rows else batch.take(pa.array(wanted))
                    yield _with_feedback(taken, rows[first:last], feedback)
                offset += batch.num_rows


def _with_feedback(batch: pa.RecordBatch, rows: Any, feedback: Mapping[int, Mapping[str, Any]]) -> pa.RecordBatch:
    if not feedback:
        return batch
    for column, key in (("feedback", "feedback"), ("feedback_mean", "mean"), ("feedback_count", "count")):
        values = batch[column].to_pylist()
        for at, row in enumerate(rows):
            if row in feedback:
                values[at] = feedback[row][key]
        field = SCHEMA.field(column)
        batch = batch.set_column(batch.schema.get_field_index(column), field, pa.array(values, field.type))
    return batch
