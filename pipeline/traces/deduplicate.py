"""Compares a day's rows by their keys, in SQL within a memory limit, in any order of files and rows: which export of an
observation is the newest, which call answers a user's message, which rows say the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.traces.annotations import FEEDBACK
from pipeline.traces.database import MEMORY_MB, connect, quoted
from pipeline.traces.records import Reason

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# An observation's newest export wins; the last model call stands for its turn of the trace; the same answer to the same
# prompt for the same user at the same moment is one row (at another moment it is a second sample of the model, and
# signal). Ties are broken by what the rows say of themselves, then by their place in the source. Most rows share
# nothing with another one: only the contested ones are ranked. They are looked for by 64-bit hashes, which are grouped
# faster than texts; two that are alike by chance add a row that wins its ranks and changes nothing.
HASHED = """
create temp table hashed as select part, line, reason is null as passed, hash(observation_id) as observation,
    hash(trace_id) as trace, hash(user_id, timestamp, content_key) as content
from keys where observation_id is not null
"""
CONTESTED = """
create temp table contested as
with shared as (
    select part, line from hashed
    where observation in (select observation from hashed group by all having count(*) > 1)
    or trace in (select trace from hashed group by all having count(*) > 1)
    or content in (select content from hashed where passed group by all having count(*) > 1)
)
select * from keys semi join shared using (part, line)
"""
REJECTED = """
create temp table rejected as
with exports as (
    select *, row_number() over (
        partition by observation_id order by updated_at desc nulls last, part desc, line desc
    ) as export
    from contested
),
calls as (
    select * exclude (export),
        row_number() over last_first as call,
        first_value(content_key) over last_first as final_key
    from exports where export = 1 and reason is distinct from 'helper'
    window last_first as (
        partition by trace_id, turn order by timestamp desc, updated_at desc nulls last, part desc, line desc
    )
),
finals as (
    select *, row_number() over (
        partition by user_id, timestamp, content_key order by trace_id, observation_id, part, line
    ) as copy
    from calls where call = 1 and reason is null
)
select part, row, line, trace_id, 'duplicate' as reason, detail, erased from finals where copy > 1
union all
select part, row, line, trace_id, reason, detail, erased from calls where call = 1 and reason is not null
union all
select part, row, line, trace_id, if(content_key = final_key, 'duplicate', 'intermediate'), null, null
from calls where call > 1
union all
select part, row, line, trace_id, reason, detail, erased from exports where export = 1 and reason = 'helper'
union all
select part, row, line, trace_id, 'superseded', null, null from exports where export > 1
union all
select part, row, line, trace_id, reason, detail, erased from keys where observation_id is null
union all
select part, row, line, trace_id, reason, detail, erased
from keys anti join (select part, line from contested) using (part, line)
where observation_id is not null and reason is not null
"""
# Whatever passed the gates and lost to no other row.
ADMITTED = "create temp view admitted as select * from keys anti join rejected using (part, row) where row is not null"
# A forgotten user's rows are counted and not named.
LEDGER = """
select if(reason = 'erased', null, trace_id) as trace_id, reason, file, line, detail
from rejected join files using (part) order by file, line
"""
COUNTS = """
select part, reason, count(*) from rejected group by all
union all select part, null, count(*) from admitted group by all
"""


class DayInput(NamedTuple):
    """A day's keys, and the files of scores and attributes of its traces."""

    day: str
    keys: tuple[Path, ...]
    names: Mapping[int, str]
    """Part to the name of its file."""
    folder: Path
    scores: tuple[Path, ...] = ()
    attributes: tuple[Path, ...] = ()
    memory_mb: int = MEMORY_MB


class DayOutcome(NamedTuple):
    """`admitted` and `feedback` are Parquet, the ledger a JSON line per rejected row."""

    day: str
    counts: Mapping[int, Counter[Reason | None]]
    """Rows per part and reason; None: admitted."""
    erased: tuple[str, ...]
    annotated_by: tuple[int, ...]
    """Parts with scores or attributes of any trace of the day, admitted or not."""
    admitted: Path
    feedback: Path | None
    ledger: Path


def deduplicate(case: DayInput) -> DayOutcome:
    folder = case.folder
    folder.mkdir(parents=True, exist_ok=True)
    admitted, feedback, ledger = (folder / n for n in ("admitted.parquet", "feedback.parquet", "rejected.jsonl"))
    with connect(folder, memory_mb=case.memory_mb) as db:
        db.execute(f"create temp view keys as select * from read_parquet({quoted(case.keys)})")
        db.execute(HASHED)
        db.execute(CONTESTED)
        db.execute("drop table hashed")
        db.execute(REJECTED)
        db.execute(ADMITTED)
        _copy(db, "select part, row from admitted order by part, row", admitted, "parquet")
        parts = [part for files in (case.scores, case.attributes) for part in _annotated_by(db, files)]
        scored = bool(case.scores) and _feedback(db, case.scores, feedback)
        db.execute("create temp table files(part integer, file varchar)")
        db.executemany("insert into files values (?, ?)", list(case.names.items()))
        _copy(db, LEDGER, ledger, "json")
        counts: dict[int, Counter[Reason | None]] = {}
        for part, reason, rows in db.execute(COUNTS).fetchall():
            counts.setdefault(part, Counter())[None if reason is None else Reason(reason)] = rows
        erased = db.execute("select distinct erased from rejected where erased is not null order by 1").fetchall()
    return DayOutcome(
        day=case.day,
        counts=counts,
        erased=tuple(mark for (mark,) in erased),
        annotated_by=tuple(sorted(parts)),
        admitted=admitted,
        feedback=feedback if scored else None,
        ledger=ledger,
    )


def _annotated_by(db: DuckDBPyConnection, files: Sequence[Path]) -> list[int]:
    if not files:
        return []
    result = db.execute(f"select distinct part from read_parquet({quoted(files)}) semi join keys using (trace_id)")
    return [part for (part,) in result.fetchall()]


def _feedback(db: DuckDBPyConnection, files: Sequence[Path], path: Path) -> bool:
    """Whether any admitted row has feedback, which is then written to `path`."""
    db.execute(f"create temp view scores as select * from read_parquet({quoted(files)})")
    db.execute(FEEDBACK)
    if not db.execute("select count(*) from feedback").fetchall()[0][0]:
        return False
    _copy(db, "select * from feedback order by part, row", path, "parquet")
    return True


def _copy(db: DuckDBPyConnection, query: str, path: Path, kind: str) -> None:
    target = str(path).replace("'", "''")
    db.execute(f"copy ({query}) to '{target}' (format {kind})")
