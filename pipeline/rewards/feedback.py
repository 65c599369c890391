"""Feedback: what the users of a call said and did, as one value that knows how little one thumb is.

Rule: a call's answers are Bernoulli draws under a symmetric Beta prior (arXiv:1707.02038, section 3), and its value is
the posterior mean, (sum + 0.5 * prior_strength) / (n + prior_strength). A score without a value in the table is no
answer (`pipeline.traces.scores` says which have one); scores of one name are one answer, their mean, so that a hundred
clicks are one word. A retry is half an answer of 0, once a call: people also ask again after a good answer. Departures:
answers may lie between 0 and 1, and a retry counts in part. A session is a conversation, and what is said of one turn
is about that turn; where the recipe says `turns: earlier` it reaches the turns before it that nobody rated.

Whose feedback counts: caps that keep one user or one tenant from teaching the model alone.

Rule, in this order. Burst: a principal with `burst` rated calls within an hour is set aside whole, until a person has
looked. User: of every other principal at most `max_per_user` calls count. Tenant: of calls that name a tenant, none has
more than `max_tenant_share` of those that remain, nor more than an equal part where the tenants are too few for that (a
lone one is not capped); but always as many as one user may. Calls without a tenant are neither capped nor in the base.
A few per cent of poisoned feedback are enough to plant a behaviour (arXiv:2311.14455, arXiv:2404.05530). Departure:
those papers look for bad labels; we bound what anybody can place, for no detector is certain. Owns no values.

Settled once for a window, in `iterations/<id>/opinions/`, a file for each of its days: a worker reads only its own.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
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
from pipeline.traces.sources.shapes import decoded

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


# With prior_strength 1 one thumb up is worth 0.75 and one thumb down 0.25: a single clear word crosses the thresholds
# of preference pairs (chosen >= 0.7, rejected < 0.5), and a thumb up that was followed by a retry (0.6) or by a thumb
# down of another name (0.5) does not. Above a strength of 1.5 one thumb up would no longer reach 0.7.

COLUMNS = ("trace_id", "observation_id", "timestamp", "user_id", "session_id", "messages", "feedback", "metadata")
OPINIONS: pa.Schema = pa.schema(
    [
        ("trace_id", pa.string()),
        ("observation_id", pa.string()),
        ("value", pa.float64()),  # null when set aside
        ("answers", pa.float64()),  # a retry is half a one
        ("reason", pa.string()),  # "", burst, over_user_cap or over_tenant_cap
    ]
)


def settle(batches: Iterable[pa.RecordBatch], settings: Feedback, scratch: Path | None = None) -> pa.Table:
    """One row of OPINIONS a call with an answer or a retry, sorted by trace and observation.

    `batches` hold COLUMNS of the governed table for one window, each (trace, observation) once and in any order.
    Retries are a score named `retry_name` whose value is bad, and the same user
    asking the same in the same session again within `retry_window_s`; of these the earlier call is the one retried.
    `scratch`: a folder for what does not fit into memory; without one the system's own.
    """
    # What is held of a row is some 200 bytes, in a database that spills beyond its memory limit: no text stays.
    with tempfile.TemporaryDirectory(prefix="feedback-", dir=scratch) as folder, connect(Path(folder)) as db:
        db.execute(CALLS)
        for batch in batches:
            _add(db, batch, settings)
        if settings.turns == "earlier":
            db.execute(EARLIER)
            db.execute("drop table calls; alter table reached rename to calls")
        db.execute(RATED, {"window": round(settings.retry_window_s * 1e6)})
        set_aside(db, settings)
        relation: Any = db.sql(VALUES, params={"strength": settings.prior_strength})
        return relation.to_arrow_table().cast(OPINIONS)


def principal(user_id: str | None, session_id: str | None, trace_id: str) -> str:
    """Whose word it is: the user, else the session, else the trace itself. No two of them share a name."""
    if user_id:
        return f"user:{user_id}" if user_id.startswith(("user:", "session:", "trace:")) else user_id
    return f"session:{session_id}" if session_id else f"trace:{trace_id}"


def tenant_of(metadata: str, key: str) -> str | None:
    """The tenant that a trace's metadata names under `key`, be it plain or JSON in text; None where it names none."""
    try:
        raw = _FIELDS.decode(metadata).get(key)
        value = msgspec.json.decode(raw) if raw is not None else None
    except (msgspec.MsgspecError, RecursionError):
        return None
    parsed = decoded(value) if isinstance(value, str) else value
    return (
        (parsed if isinstance(parsed, str) else msgspec.json.encode(parsed).decode())
        if parsed not in (None, "")
        else None
    )


_FIELDS: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Leaves the values, which may be long, unread."""

CALLS = """
create temp table calls (
    trace_id varchar, observation_id varchar, moment bigint, principal varchar, tenant varchar,
    user_id varchar, session_id varchar, prompt ubigint, total double, answers double, retried boolean
)
"""
# Sums are ordered: the same answers give the same value to the last bit.
ADD = """
insert into calls
with said as (select row, unnest(feedback, recursive := true) from batch),
answered as (
    select row, avg(value order by value) as answer from said
    where name is distinct from $retry and value between 0 and 1 group by row, name
),
summed as (select row, sum(answer order by answer) as total, count(*) as answers from answered group by row),
retried as (select distinct row from said where name = $retry and value < 0.5)
select trace_id, observation_id, epoch_us(timestamp), principal, tenant,
    nullif(user_id, ''), nullif(session_id, ''), hash(messages),
    coalesce(total, 0), coalesce(answers, 0), row in (select row from retried)
from batch left join summed using (row)
"""
# A turn that nobody rated has the answers of the next rated turn of its session, of the same principal.
EARLIER = """
create temp table reached as
with turns as (
    select *,
        first_value(if(answers > 0, total, null) ignore nulls) over later as later_total,
        first_value(if(answers > 0, answers, null) ignore nulls) over later as later_answers
    from calls window later as (
        partition by principal, session_id order by moment, trace_id, observation_id
        rows between 1 following and unbounded following
    )
)
select * exclude (later_total, later_answers) replace (
    if(unrated, later_total, total) as total, if(unrated, later_answers, answers) as answers
)
from (select *, answers = 0 and session_id is not null and later_answers is not null as unrated from turns)
"""
# Asked at the very same moment is no retry: an application that samples several answers does that.
RATED = """
create temp table rated as
with asked as (
    select *, retried or (user_id is not null and session_id is not null and count(*) over (
        partition by user_id, session_id, prompt order by moment range between 1 following and $window following
    ) > 0) as retry
    from calls
)
select trace_id, observation_id, moment, principal, tenant, total, answers + if(retry, 0.5, 0) as answers
from asked where answers > 0 or retry
"""
VALUES = """
select trace_id, observation_id, if(reason = '', (total + 0.5 * $strength) / (answers + $strength), null) as value,
    answers, reason
from standing order by trace_id, observation_id
"""


def _add(db: DuckDBPyConnection, batch: pa.RecordBatch, settings: Feedback) -> None:
    """Take from a batch what may count: rows with scores, and rows that may have been asked again."""
    rows: Any = batch.select(list(COLUMNS))
    wanted = pc.greater(pc.list_value_length(rows["feedback"]), 0)
    if settings.retry_window_s:
        named = pc.and_(pc.is_valid(rows["user_id"]), pc.is_valid(rows["session_id"]))
        wanted = pc.or_(wanted, named)
    if settings.turns == "earlier":
        wanted = pc.or_(wanted, pc.is_valid(rows["session_id"]))
    rows = rows.filter(wanted)
    names = (rows[column].to_pylist() for column in ("user_id", "session_id", "trace_id"))
    tenants = [tenant_of(metadata, settings.tenant_key) for metadata in rows["metadata"].to_pylist()]
    table = pa.Table.from_batches([rows.drop_columns(["metadata"])])
    table = table.append_column("principal", pa.array(map(principal, *names), pa.string()))
    table = table.append_column("tenant", pa.array(tenants, pa.string()))
    table = table.append_column("row", pa.array(range(len(table)), pa.int64()))
    db.register("batch", table)
    db.execute(ADD, {"retry": settings.retry_name})
    db.unregister("batch")


# Lots decide which calls count, not time: whoever comes first, or last, would choose. They are a hash of ids that the
# tracing backend assigns; where clients may choose their trace ids, a user can choose which of their own calls count,
# and never how many. The first word is a salt that stays as it is: another one would draw other calls.
PRINCIPALS = """
create temp table drawn as
with lots as (
    select *, sha256(concat_ws(chr(31), 'pipeline.rewards.caps', trace_id, observation_id)) as lot,
        count(*) over (
            partition by principal order by moment range between current row and 3600000000 following
        ) as pace
    from rated
),
ranked as (
    select * exclude (pace), max(pace) over (partition by principal) as pace,
        row_number() over (partition by principal order by lot, trace_id, observation_id) as place
    from lots
)
select *, case when pace >= $burst then 'burst' when place > $most then 'over_user_cap' else '' end as reason
from ranked
"""
COUNTED = "select count(*) from drawn where reason = '' and tenant is not null group by tenant"
TENANTS = """
create temp table standing as
with ranked as (
    select *, row_number() over (partition by tenant, reason order by lot, trace_id, observation_id) as seat from drawn
)
select * exclude (seat, reason),
    if(reason = '' and tenant is not null and seat > $level, 'over_tenant_cap', reason) as reason
from ranked
"""


def set_aside(db: DuckDBPyConnection, settings: Feedback) -> None:
    """From the table `rated` make `standing`, which has a `reason` too: empty for a call that counts."""
    db.execute(PRINCIPALS, {"burst": settings.burst, "most": settings.max_per_user})
    counts = [count for (count,) in db.execute(COUNTED).fetchall()]
    db.execute(TENANTS, {"level": tenant_level(counts, settings.max_tenant_share, settings.max_per_user)})


def tenant_level(counts: Sequence[int], share: float, least: int) -> int:
    """The most calls of one tenant that count, given how many each has: the largest number of which all caps hold.

    Cutting everybody to a level is the fixed point of cutting the largest to their share, again and again: whoever is
    below it loses nothing.
    """

    def holds(level: int) -> bool:
        total = sum(min(count, level) for count in counts)
        return level <= share * total or level * len(counts) <= total

    low, high = 0, max(counts, default=0)
    while low < high:  # what is within its share at one level is so at every lower one: the total grows ever slower
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return max(low, least)


def settle_window(context: IterationContext, lake: Lake, window: Window) -> Path:
    """The folder of the window's opinions: `<day>.parquet` with the columns of `feedback.OPINIONS`."""
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


def count_set_aside(folder: Path) -> dict[str, int]:
    """Rated traces whose feedback does not count, by reason."""
    reasons: Counter[str] = Counter()
    for path in sorted(folder.glob("*.parquet")):
        reasons.update(pq.read_table(path, columns=["reason"])["reason"].to_pylist())
    del reasons[""]
    return dict(sorted(reasons.items()))
