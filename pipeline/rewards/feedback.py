"""Feedback: a call's answers as the mean of a Beta posterior (arXiv:1707.02038, section 3), and a cap for each user.
Settled once for a window, in `iterations/<id>/opinions/`, a file for each of its days."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core import layout
from pipeline.recipe.rewards import Feedback
from pipeline.traces.arrow import pc
from pipeline.traces.context import IterationContext
from pipeline.traces.database import connect
from pipeline.traces.lake import Lake
from pipeline.traces.records import Window
from pipeline.traces.scope import where
from pipeline.traces.scores import RETRY
from pipeline.traces.sources.shapes import decoded

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# With prior_strength 1 one thumb up is worth 0.75 and one thumb down 0.25: a single clear word crosses the thresholds
# of preference pairs (chosen >= 0.7, rejected < 0.5), and a thumb up beside a thumb down of another name (0.5) does
# not. Above a strength of 1.5 one thumb up would no longer reach 0.7.

COLUMNS = ("trace_id", "observation_id", "user_id", "session_id", "feedback")
OPINIONS: pa.Schema = pa.schema(
    [
        ("trace_id", pa.string()),
        ("observation_id", pa.string()),
        ("value", pa.float64()),  # null when set aside
        ("reason", pa.string()),  # "" or over_user_cap
    ]
)


def settle(batches: Iterable[pa.RecordBatch], settings: Feedback, scratch: Path | None = None) -> pa.Table:
    """One row of OPINIONS a call with an answer, sorted by trace and observation.

    `batches` hold COLUMNS of the governed table for one window, each (trace, observation) once and in any order.
    `scratch`: a folder for what does not fit into memory; without one the system's own.
    """
    # What is held of a row is some 200 bytes, in a database that spills beyond its memory limit.
    with tempfile.TemporaryDirectory(prefix="feedback-", dir=scratch) as folder, connect(Path(folder)) as db:
        db.execute(CALLS)
        for batch in batches:
            _add(db, batch)
        limits = {"strength": settings.prior_strength, "most": settings.max_per_user}
        relation: Any = db.sql(VALUES, params=limits)
        return relation.to_arrow_table().cast(OPINIONS)


def principal(user_id: str | None, session_id: str | None, trace_id: str) -> str:
    """Whose word it is: the user, else the session, else the trace itself. No two of them share a name."""
    if user_id:
        return f"user:{user_id}" if user_id.startswith(("user:", "session:", "trace:")) else user_id
    return f"session:{session_id}" if session_id else f"trace:{trace_id}"


def tenant_of(metadata: Mapping[str, Any], key: str) -> str | None:
    """The tenant that a trace's metadata names under `key`, be it plain or JSON in text; None where it names none."""
    tenant = decoded(metadata.get(key))
    if tenant in (None, ""):
        return None
    text = tenant if isinstance(tenant, str) else json.dumps(tenant, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode()


CALLS = """
create temp table calls (
    trace_id varchar, observation_id varchar, principal varchar, total double, answers double
)
"""
# Sums are ordered: the same answers give the same value to the last bit.
ADD = """
insert into calls
with said as (select row, unnest(feedback, recursive := true) from batch),
answered as (
    select row, avg(value order by value) as answer from said
    where value between 0 and 1 and name is distinct from $retry group by row, name
),
summed as (select row, sum(answer order by answer) as total, count(*) as answers from answered group by row)
select trace_id, observation_id, principal, total, answers from batch join summed using (row)
"""
# A hash decides which calls count, not time: whoever comes first, or last, would choose. It is of ids that the tracing
# backend assigns; where clients may choose their trace ids, a user can choose which of their own calls count, and never
# how many. The first word is a salt that stays as it is: another one would draw other calls.
VALUES = """
with ranked as (
    select *, row_number() over (
        partition by principal
        order by sha256(concat_ws(chr(31), 'pipeline.rewards.caps', trace_id, observation_id)), trace_id, observation_id
    ) > $most as capped
    from calls
)
select trace_id, observation_id,
    if(capped, null, (total + 0.5 * $strength) / (answers + $strength)) as value,
    if(capped, 'over_user_cap', '') as reason
from ranked order by trace_id, observation_id
"""


def _add(db: DuckDBPyConnection, batch: pa.RecordBatch) -> None:
    """Take from a batch what may count: rows with scores."""
    rows: Any = batch.select(list(COLUMNS))
    table = pa.Table.from_batches([rows.filter(pc.greater(pc.list_value_length(rows["feedback"]), 0))])
    names = (table[column].to_pylist() for column in ("user_id", "session_id", "trace_id"))
    table = table.append_column("principal", pa.array(map(principal, *names), pa.string()))
    db.register("batch", table.append_column("row", pa.array(range(len(table)), pa.int64())))
    db.execute(ADD, {"retry": RETRY})
    db.unregister("batch")


def settle_window(context: IterationContext, lake: Lake, window: Window) -> Path:
    """The folder of the window's opinions: `<day>.parquet` with the columns of OPINIONS."""
    store, settings = context.store, context.recipe.rewards.feedback
    folder = context.path(layout.OPINIONS)
    scratch = store.path(layout.STAGING)  # what a kill leaves there is known to the erasure
    scratch.mkdir(parents=True, exist_ok=True)
    rows = where(window.scope)
    table = settle(lake.batches(window.days, window.snapshot, COLUMNS, rows), settings, scratch)
    with store.staged(folder) as staging:
        for day in window.days:
            asked = [batch["trace_id"] for batch in lake.batches([day], window.snapshot, ["trace_id"], rows)]
            of_day = pc.is_in(table["trace_id"], pa.chunked_array(asked, pa.string()).combine_chunks())
            pq.write_table(table.filter(of_day), staging / f"{day}.parquet")
    return store.path(folder)
