"""Governed rows with feedback, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.recipe.rewards import Feedback
from pipeline.rewards.feedback import COLUMNS, OPINIONS, settle
from pipeline.traces.rows import SCHEMA

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
ROWS = pa.schema([SCHEMA.field(name) for name in COLUMNS])
UP, DOWN = ("thumb", 1.0), ("thumb", 0.0)


class Opinion(NamedTuple):
    value: float | None
    answers: float
    reason: str


def call(trace: str, *scores: tuple[Any, ...], **columns: Any) -> dict[str, Any]:
    """A governed row. `scores` are (name, value) or (name, value, source); `at` counts seconds after noon."""
    feedback = [dict(zip(("name", "value", "source"), (*score, "API")[:3], strict=True)) for score in scores]
    return {
        "trace_id": trace,
        "observation_id": f"{trace}-1",
        "timestamp": NOON + timedelta(seconds=columns.get("at", 0)),
        "user_id": columns.get("user", "ann"),
        "session_id": columns.get("session", "s1"),
        "messages": [{"role": "user", "content": columns.get("ask", trace), "tool_calls": None}],
        "feedback": feedback,
        "metadata": columns.get("metadata", "{}"),
    }


def settled(rows: Sequence[dict[str, Any]], size: int = 5, **settings: Any) -> dict[str, Opinion]:
    """What became of each trace that somebody had an opinion of."""
    batches = (pa.RecordBatch.from_pylist(list(rows[at : at + size]), schema=ROWS) for at in range(0, len(rows), size))
    table = settle(batches, Feedback(**settings))
    assert table.schema.equals(OPINIONS)
    assert table.sort_by([("trace_id", "ascending"), ("observation_id", "ascending")]).equals(table)
    return {row["trace_id"]: Opinion(row["value"], row["answers"], row["reason"]) for row in table.to_pylist()}
