"""Makes days of staged rows: compares a day's rows by their keys, writes the admitted ones into the table's files and
publishes day by day: commit, audit entry, ledger of rejected rows, report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.core import audit, layout
from pipeline.core.storage import digest_json, write_atomically
from pipeline.recipe.sources import PromptsSource
from pipeline.recipe.traces import Traces
from pipeline.traces.database import MEMORY_MB, connect, quoted
from pipeline.traces.gates import VERSION
from pipeline.traces.govern import keys_file, passed_file
from pipeline.traces.lake import LakeConfig
from pipeline.traces.lake.files import BATCH_ROWS, write_file
from pipeline.traces.reading import Reading
from pipeline.traces.records import UNKNOWN_DAY, DayReport, FileReport, Reason, day_digest, total
from pipeline.traces.rows import SCHEMA
from pipeline.traces.scores import FEEDBACK

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

KEYS = """
part, row, line, block, trace_id, observation_id, user_id, model, timestamp, updated_at, content_key, turn, reason,
detail, erased
"""
# An observation's newest export wins; the last model call stands for its turn of the trace; the same answer to the same
# prompt for the same user at the same moment is one row (at another moment it is a second sample of the model, and
# signal). Ties are broken by what the rows say of themselves, then by their place in the source. Most rows share
# nothing with another one: only the contested ones are ranked. They are looked for by 64-bit hashes, which are grouped
# faster than texts; two that are alike by chance add a row that wins its ranks and changes nothing.
CONTESTED = """
create temp table contested as
with hashed as materialized (
    select part, row, reason is null as passed, hash(observation_id) as observation, hash(trace_id) as trace,
        hash(user_id, timestamp, content_key) as content
    from keys where observation_id is not null
)
select keys.* from keys semi join (
    from hashed where observation in (select observation from hashed group by all having count(*) > 1)
    or trace in (select trace from hashed group by all having count(*) > 1)
    or content in (select content from hashed where passed group by all having count(*) > 1)
) using (part, row)
"""
DECIDED = """
create temp table decided as
with exports as (
    select *, row_number() over (
        partition by observation_id order by updated_at desc nulls last, part desc, line desc, row desc
    ) = 1 as newest
    from contested
),
calls as (
    select *, newest and reason is distinct from 'helper' as answers,
        row_number() over last_first = 1 as last, first_value(content_key) over last_first as last_key
    from exports
    window last_first as (
        partition by answers, trace_id, turn
        order by timestamp desc, updated_at desc nulls last, part desc, line desc, row desc
    )
),
copies as (
    select *, row_number() over (
        partition by answers and last and reason is null, user_id, timestamp, content_key
        order by trace_id, observation_id, part, row
    ) = 1 as first
    from calls
)
select part, row, case
    when not newest then 'superseded'
    when answers and not last then if(content_key = last_key, 'duplicate', 'intermediate')
    when reason is null and not first then 'duplicate'
    else reason
end as outcome
from copies
"""
JUDGED = """
create temp view judged as
select keys.*, coalesce(outcome, reason) as outcome from keys left join decided using (part, row)
"""
ADMITTED = """
create table admitted as select part, row, block, trace_id, observation_id, model from judged where outcome is null
"""
NO_FEEDBACK = """
create table feedback (part integer, row bigint, feedback struct(name varchar)[], mean double, count bigint)
"""
# A forgotten user's rows are counted and not named.
LEDGER = """
select if(outcome = 'erased', null, trace_id) as trace_id, outcome as reason, file, line,
    if(outcome = reason, detail, null) as detail
from judged join files using (part) where outcome is not null order by file, line
"""
COUNTS = """
select part, 'seen', count(*) from keys group by all
union all select part, coalesce(outcome, 'admitted'), count(*) from judged group by all
"""
MODELS = "select model from admitted group by all order by min(part), min(row)"
ROWS = """
select part, block, row, coalesce(f.feedback, []) as feedback, f.mean as feedback_mean,
    coalesce(f.count, 0) as feedback_count
from admitted left join feedback f using (part, row) where model = $model order by part, row
"""


class DayTask(NamedTuple):
    """A day's staged files by the names of their parts, and the files of scores."""

    day: str
    files: Mapping[Path, tuple[int, str]]
    folder: Path
    scores: tuple[Path, ...] = ()
    memory_mb: int = MEMORY_MB


class DayOutcome(NamedTuple):
    """`database` has the admitted rows and their feedback, the ledger a JSON line per rejected row."""

    day: str
    counts: Mapping[int, Counter[str]]
    """Per part the rows `seen` and `admitted`, and those of each reason."""
    erased: tuple[str, ...]
    annotated_by: tuple[int, ...]
    """Parts with scores of any trace of the day, admitted or not."""
    database: Path
    ledger: Path


class DayRows(NamedTuple):
    """The admitted rows of a day. `name`: of the files that they are written to; `folder`: of the staged rows."""

    lake: LakeConfig
    day: str
    name: str
    database: Path
    folder: Path


def compare(task: DayTask) -> DayOutcome:
    """Which rows of a day are admitted, in SQL within a memory limit, whatever the order of files and rows."""
    task.folder.mkdir(parents=True, exist_ok=True)
    database, ledger = task.folder / f"{task.day}.duckdb", task.folder / f"{task.day}.jsonl"
    database.unlink(missing_ok=True)  # of an attempt that was killed
    with connect(task.folder, database, memory_mb=task.memory_mb) as db:
        db.execute(f"create temp view keys as select {KEYS} from {_staged(task.files, task.day)}")
        db.execute(CONTESTED)
        db.execute(DECIDED)
        db.execute(JUDGED)
        db.execute(ADMITTED)
        parts = _annotated_by(db, task.scores)
        db.execute(FEEDBACK.format(scores=quoted(task.scores)) if task.scores else NO_FEEDBACK)
        db.execute("create temp table files(part integer, file varchar)")
        db.executemany("insert into files values (?, ?)", list(task.files.values()))
        target = str(ledger).replace("'", "''")
        db.execute(f"copy ({LEDGER}) to '{target}' (format json)")
        counts: dict[int, Counter[str]] = {}
        for part, kind, rows in db.execute(COUNTS).fetchall():
            counts.setdefault(part, Counter())[kind] = rows
        erased = db.execute("select distinct erased from judged where outcome = 'erased' order by 1").fetchall()
    return DayOutcome(
        day=task.day,
        counts=counts,
        erased=tuple(mark for (mark,) in erased),
        annotated_by=tuple(sorted(parts)),
        database=database,
        ledger=ledger,
    )


def write_day(rows: DayRows) -> list[str]:
    """URIs of the data files with the rows, one for each model. Raises OSError when they cannot be written."""
    uris: list[str] = []
    with connect(rows.database.parent, rows.database, read_only=True) as db:
        for number, (model,) in enumerate(db.execute(MODELS).fetchall()):
            admitted = db.sql(ROWS, params={"model": model}).to_arrow_reader(BATCH_ROWS)
            uris += write_file(rows.lake, rows.day, f"{rows.name}-{number:04d}", _texts(admitted, rows.folder))
    return uris


def _texts(admitted: Iterable[pa.RecordBatch], folder: Path) -> Iterator[pa.RecordBatch]:
    """Admitted rows as the table has them. Their texts are read block by block."""
    held, block = (-1, -1), pa.RecordBatch.from_pylist([])
    for batch in admitted:
        parts, blocks, rows = (batch[name].to_numpy() for name in ("part", "block", "row"))
        ends = np.flatnonzero(np.diff(parts) | np.diff(blocks)) + 1
        for start, end in pairwise([0, *ends.tolist(), len(rows)]):
            if held != (wanted := (int(parts[start]), int(blocks[start]))):
                with pa.OSFile(str(passed_file(folder, wanted[0]))) as file:
                    held, block = wanted, pa.ipc.open_file(file).get_batch(wanted[1])
            texts = block.take(pa.array(np.searchsorted(block["row"].to_numpy(), rows[start:end])))
            said = batch.slice(start, end - start)
            columns = [said[f.name].cast(f.type) if f.name in said.schema.names else texts[f.name] for f in SCHEMA]
            yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _staged(files: Iterable[Path], day: str) -> str:
    on_day = "day is null" if day == UNKNOWN_DAY else f"day = date '{day}'"
    return f"(from read_parquet({quoted(files)}) where {on_day})"


def _annotated_by(db: DuckDBPyConnection, files: Sequence[Path]) -> list[int]:
    if not files:
        return []
    result = db.execute(f"select distinct part from read_parquet({quoted(files)}) semi join keys using (trace_id)")
    return [part for (part,) in result.fetchall()]


def rules_digest(settings: Traces) -> str:
    """Digest of all that decides whether a row is admitted."""
    elsewhere = {"source", "imports", "window_days", "attribution", "min_admitted_share", "lake", "governed_days"}
    rules = settings.model_dump(mode="json", exclude=elsewhere)
    rules |= {"regions_allowed": settings.regions, "reader": settings.reader}
    if isinstance(settings.source, PromptsSource):  # it says what is read of a file, and what stands in every row
        rules["prompts"] = settings.source.model_dump(mode="json", exclude={"uri"})
    return digest_json([VERSION, rules])


def kept_from(settings: Traces, now: datetime) -> str:
    days = settings.governed_days
    return "" if days is None else (now.date() - timedelta(days=days)).isoformat()


def make_days(
    reading: Reading, days: Iterable[str], allow: Callable[[Sequence[DayReport]], None]
) -> dict[int, set[str]]:
    """Bring each day up to date: its rows in the table, its report and its ledger.

    `allow` gets the new reports and may raise before anything is published. Returns the days that each part of scores
    is about.
    """
    settings, log = reading.context.recipe.traces, reading.context.log
    kept = [day for day in sorted(days) if day >= kept_from(settings, reading.now)]
    tasks = [task for day in kept if (task := _task(reading, day)).files]
    outcomes = [done for _, done in zip(tasks, reading.engine.map(compare, tasks, log), strict=True)]
    rules = rules_digest(settings)
    reports = {each.day: _report(reading, each, rules) for each in outcomes}
    allow(list(reports.values()))
    due: list[DayOutcome] = []
    for outcome in outcomes:
        report = reports[outcome.day]
        if _is_current(reading, report):
            log(f"traces: {report.day} is up to date ({report.admitted:,} of {report.seen:,} rows)")
        else:
            due.append(outcome)
    rows = [_rows(reading, outcome, reports[outcome.day]) for outcome in due]
    for outcome, files in zip(due, reading.engine.map(write_day, rows, log), strict=True):
        _publish(reading, outcome, reports[outcome.day], files)
    about: dict[int, set[str]] = {}
    for outcome in outcomes:
        for place in outcome.annotated_by:
            about.setdefault(place, set()).add(outcome.day)
    return about


def _task(reading: Reading, day: str) -> DayTask:
    places = [place for place, done in sorted(reading.governed.items()) if day in done.days]
    return DayTask(
        day=day,
        files={keys_file(reading.folder, place): (place, reading.parts[place].name) for place in places},
        folder=reading.folder / "days",
        scores=reading.scores,
        memory_mb=reading.context.recipe.compute.memory_mb,
    )


def _report(reading: Reading, outcome: DayOutcome, rules: str) -> DayReport:
    places = {n for n, done in reading.governed.items() if outcome.day in done.days} | set(outcome.annotated_by)
    files = [_file_report(reading, place, outcome.counts.get(place, Counter())) for place in sorted(places)]
    entries = map(reading.forgotten.entry_of_hash, outcome.erased)
    erased = tuple(sorted(entry.proof for entry in entries if entry is not None))
    digest = day_digest(rules, {file.name: file.sha256 for file in files}, erased)
    return DayReport(day=outcome.day, rules=rules, digest=digest, files=tuple(files), erased=erased)


def _file_report(reading: Reading, place: int, counts: Counter[str]) -> FileReport:
    part = reading.parts[place]
    return FileReport(
        name=part.name,
        sha256=reading.governed[place].sha256,
        bytes=part.size,
        seen=counts["seen"],
        admitted=counts["admitted"],
        rejected=total([{reason: counts[reason] for reason in Reason}]),
    )


def _is_current(reading: Reading, report: DayReport) -> bool:
    published = reading.context.store.read(layout.day_report(report.day), DayReport)
    return published is not None and published.digest == report.digest and report.is_in(reading.lake.digests())


def _rows(reading: Reading, outcome: DayOutcome, report: DayReport) -> DayRows:
    return DayRows(reading.context.lake, report.day, report.digest[:16], outcome.database, reading.folder)


def _publish(reading: Reading, outcome: DayOutcome, report: DayReport, files: list[str]) -> None:
    store, lake, log, day = reading.context.store, reading.lake, reading.context.log, report.day
    if day != UNKNOWN_DAY:  # rows of no known day are never in the table
        lake.replace_day(day, files, report.digest)
    counts = {"seen": report.seen, "admitted": report.admitted, "digest": report.digest, "snapshot": lake.snapshot}
    audit.record(store, "admission", day, counts, reading.now)
    write_atomically(store.path(layout.rejected_rows(day)), outcome.ledger.read_bytes())
    store.write(layout.day_report(day), report)  # last: a day without its report is made again
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in report.rejected.items())
    log(f"traces: {day} governed: {report.admitted:,} of {report.seen:,} rows; rejected: {reasons or 'none'}")
