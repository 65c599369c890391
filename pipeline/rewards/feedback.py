"""Feedback: a call's answers as the mean of a Beta posterior (arXiv:1707.02038, section 3), and a cap for each user.
Settled once for a window, in `iterations/<id>/opinions/`, a file for each of its days."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core import layout
from pipeline.recipe.rewards import Feedback
from pipeline.traces.arrow import pc
from pipeline.traces.context import IterationContext
from pipeline.traces.lake import Lake
from pipeline.traces.records import Window
from pipeline.traces.scope import where
from pipeline.traces.scores import RETRY
from pipeline.traces.sources.shapes import decoded

# With prior_strength 1 one thumb up is worth 0.75 and one thumb down 0.25: a single clear word crosses the thresholds
# of preference pairs (chosen >= 0.7, rejected < 0.5), and a thumb up beside a thumb down of another name (0.5) does
# not. Above a strength of 1.5 one thumb up would no longer reach 0.7.

COLUMNS = ("trace_id", "observation_id", "day", "user_id", "session_id", "feedback")
OPINIONS: pa.Schema = pa.schema(
    [
        ("trace_id", pa.string()),
        ("observation_id", pa.string()),
        ("day", pa.date32()),
        ("value", pa.float64()),  # null when set aside
        ("reason", pa.string()),  # "" or over_user_cap
    ]
)
_CALLS = pa.schema([*OPINIONS, ("principal", pa.string()), ("lot", pa.string())])


def settle(batches: Iterable[pa.RecordBatch], settings: Feedback) -> pa.Table:
    """One row of OPINIONS a call with an answer, sorted by trace and observation. Rated calls are held in memory, some
    500 bytes each.

    `batches` hold COLUMNS of the governed table for one window, each (trace, observation) once and in any order.
    """
    calls: pa.Table = pa.concat_tables([_CALLS.empty_table(), *(_calls(batch, settings) for batch in batches)])
    calls = calls.sort_by([(name, "ascending") for name in ("principal", "lot", "trace_id", "observation_id")])
    counted: Counter[str] = Counter()
    reasons: list[str] = []
    for name in calls["principal"].to_pylist():
        counted[name] += 1
        reasons.append("over_user_cap" if counted[name] > settings.max_per_user else "")
    reason = pa.array(reasons, pa.string())
    value = pc.if_else(pc.equal(reason, ""), calls["value"], pa.scalar(None, pa.float64()))
    calls = calls.set_column(3, "value", value).set_column(4, "reason", reason).select(OPINIONS.names)
    return calls.sort_by([("trace_id", "ascending"), ("observation_id", "ascending")])


def _calls(batch: pa.RecordBatch, settings: Feedback) -> pa.Table:
    """What may count of a batch: rows that somebody rated."""
    rows = pa.table(batch).filter(pc.greater(pc.list_value_length(batch["feedback"]), 0)).to_pylist()
    calls: list[dict[str, Any]] = []
    for row in rows:
        ids = (row["trace_id"], row["observation_id"])
        if answers := user_scores(row["feedback"]):  # sums are exact: the same answers give the same last bit
            value = (fsum(answers) + 0.5 * settings.prior_strength) / (len(answers) + settings.prior_strength)
            who = principal(row["user_id"], row["session_id"], row["trace_id"])
            calls.append({**row, "value": value, "principal": who, "lot": _lot(*ids)})
    return pa.Table.from_pylist(calls, _CALLS)


def _lot(trace_id: str, observation_id: str) -> str:
    """A hash decides which calls count, not time: whoever comes first, or last, would choose. It is of ids that the
    tracing backend assigns; where clients may choose their trace ids, a user can choose which of their own calls count,
    and never how many. The first word is a salt that stays as it is: another one would draw other calls."""
    return hashlib.sha256("\x1f".join(("pipeline.rewards.caps", trace_id, observation_id)).encode()).hexdigest()


def user_scores(feedback: Sequence[Mapping[str, Any]]) -> list[float]:
    """What users said of an answer, a mean for each name of a score; questions asked again are none."""
    by_name: defaultdict[str, list[float]] = defaultdict(list)
    for score in feedback:
        value = score["value"]
        if value is not None and 0 <= value <= 1 and score["name"] != RETRY:
            by_name[score["name"]].append(value)
    return [fmean(values) for values in by_name.values()]


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


def settle_window(context: IterationContext, lake: Lake, window: Window) -> Path:
    """The folder of the window's opinions: `<day>.parquet` with the columns of OPINIONS."""
    folder = context.path(layout.OPINIONS)
    batches = lake.batches(window.days, window.snapshot, COLUMNS, where(window.scope))
    table = settle(batches, context.recipe.rewards.feedback)
    days = pc.cast(table["day"], pa.string())
    with context.store.staged(folder) as staging:
        for day in window.days:
            pq.write_table(table.filter(pc.equal(days, day)), staging / f"{day}.parquet")
    return context.store.path(folder)
