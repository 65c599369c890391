"""What the traces stage reads, counts and hands on: the trace, the rejection, the reports, the table's schema.

Owns the equation `seen == admitted + sum(rejected)`, checked per file and per day wherever a report is made or read.
Refuses to know a source's format, a gate's rule or how the table is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

import msgspec
import pyarrow as pa
from pydantic import NonNegativeInt, model_validator

from pipeline.iteration import Iteration
from pipeline.storage import Record

UNKNOWN_DAY = "unknown"
"""The day of a row that cannot be dated, neither by itself nor by the name of its file."""


class Reason(StrEnum):
    """Why a row of the source is not in the governed table. A row has exactly one."""

    MALFORMED = "malformed"  # the line is not JSON
    TRUNCATED_FILE = "truncated_file"  # the compressed file breaks off: one count for its unread rest
    SCHEMA = "schema"  # JSON without what a trace needs
    NOT_GENERATION = "not_generation"  # a span, tool call or event: it holds no text of the model
    SUPERSEDED = "superseded"  # a newer export of the same observation won
    INTERMEDIATE = "intermediate"  # an earlier model call of a trace whose last one stands for it
    PII = "pii"  # personal data that cannot be masked
    CONSENT = "consent"
    REGION = "region"
    CONFIDENTIAL = "confidential"
    ERROR = "error"
    TRUNCATED = "truncated"  # the completion was cut at the token limit
    LATENCY = "latency"
    EMPTY_OUTPUT = "empty_output"
    DUPLICATE = "duplicate"
    GATE_ERROR = "gate_error"  # a gate raised: the row fails closed


class Score(msgspec.Struct):
    """One piece of feedback on a trace. `value` is in [0, 1], or None where the score has no known scale."""

    id: str
    trace_id: str
    observation_id: str | None
    name: str
    value: float | None
    source: str
    updated_at: datetime | None


class Trace(msgspec.Struct):
    """One answer of the model: the last model call of a trace, with all that the loop may learn from it.

    `timestamp` is UTC. A message is `{role, content}`, with its tool calls as JSON text under `tool_calls`.
    """

    trace_id: str
    observation_id: str
    timestamp: datetime
    day: str
    model: str
    user_id: str | None
    session_id: str | None
    messages: list[dict[str, str]]
    completion: str
    file: str
    line: int
    updated_at: datetime | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    latency_s: float | None = None
    level: str = "DEFAULT"
    error: str | None = None
    finish_reason: str | None = None
    reference: str | None = None
    metadata: dict[str, Any] = {}
    feedback: list[Score] = []
    has_payload: bool = False
    """The source logged something other than text (an image, audio, a file) that no mask can look into."""
    consent: bool = False


class Rejection(msgspec.Struct, frozen=True):
    """A row that stays out, and where it stands in the source. Never its text."""

    trace_id: str | None
    reason: Reason
    file: str
    line: int
    day: str


class FileRows(msgspec.Struct):
    """All that one source file held. `named_day` is the date in the file's name, if it has one."""

    name: str
    named_day: str | None
    sha256: str = ""
    traces: list[Trace] = []
    rejected: list[Rejection] = []
    scores: list[Score] = []


class FileReport(Record):
    """What one source file gave to one day. A file of scores has rows here only when they were unreadable."""

    name: str
    sha256: str
    seen: NonNegativeInt
    admitted: NonNegativeInt
    rejected: dict[Reason, int]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        check_equation(self.name, self.seen, self.admitted, self.rejected)
        return self


class DayReport(Record):
    """Where every row of a day went. A day whose files are listed and hold nothing is proved empty: seen 0."""

    day: str
    digest: str
    """sha256 of what the day was made from: its files' digests and the settings of the gates."""
    files: tuple[FileReport, ...]
    seen: NonNegativeInt
    admitted: NonNegativeInt
    rejected: dict[Reason, int]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        check_equation(self.day, self.seen, self.admitted, self.rejected)
        by_file = sum((Counter(f.rejected) for f in self.files), Counter[Reason]())
        parts = (sum(f.seen for f in self.files), sum(f.admitted for f in self.files), dict(by_file))
        if parts != (self.seen, self.admitted, self.rejected):
            raise ValueError(f"{self.day}: the files' counts do not add up to the day's; materialise the day again.")
        return self


class Window(Record):
    """The days of one dataset, and the reference under which they are read."""

    days: tuple[str, ...]
    uri: str
    rows: int
    digest: str
    snapshot: str


class GovernedTraces(Record):
    """The stage's output: the iteration that the governed data starts, and the account of every row."""

    iteration: Iteration
    source: str
    days: tuple[DayReport, ...]
    """The window's days, other days of the source that ended without a trace, and rows of no known day."""
    seen: NonNegativeInt
    admitted: NonNegativeInt
    rejected: dict[Reason, int]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        check_equation("the source", self.seen, self.admitted, self.rejected)
        return self


def check_equation(what: str, seen: int, admitted: int, rejected: dict[Reason, int]) -> None:
    """Raises ValueError unless every row that was seen ended in exactly one place."""
    if seen != admitted + sum(rejected.values()):
        raise ValueError(
            f"{what}: {seen} rows seen, {admitted} admitted and {sum(rejected.values())} rejected do not add up; "
            "materialise the day again."
        )


def total(reasons: Iterable[dict[Reason, int]]) -> dict[Reason, int]:
    """Rejections summed by reason, in the order of the enum."""
    counted = sum((Counter(r) for r in reasons), Counter[Reason]())
    return {reason: counted[reason] for reason in Reason if counted[reason]}


MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.string())])
FEEDBACK = pa.struct([("name", pa.string()), ("value", pa.float64()), ("source", pa.string())])
SCHEMA = pa.schema(
    [
        pa.field("trace_id", pa.string(), nullable=False),
        pa.field("observation_id", pa.string(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("day", pa.date32(), nullable=False),
        pa.field("model", pa.string(), nullable=False),
        pa.field("consent", pa.bool_(), nullable=False),
        pa.field("user_id", pa.string()),
        pa.field("session_id", pa.string()),
        pa.field("messages", pa.list_(MESSAGE), nullable=False),
        pa.field("completion", pa.string(), nullable=False),
        pa.field("input_tokens", pa.int64()),
        pa.field("output_tokens", pa.int64()),
        pa.field("latency_s", pa.float64()),
        pa.field("level", pa.string()),
        pa.field("error", pa.string()),
        pa.field("feedback", pa.list_(FEEDBACK), nullable=False),
        pa.field("feedback_mean", pa.float64()),
        pa.field("feedback_count", pa.int64(), nullable=False),
        pa.field("reference", pa.string()),
        pa.field("metadata", pa.string(), nullable=False),
        pa.field("source_file", pa.string(), nullable=False),
    ]
)
"""The governed table. `metadata` is JSON; `reference` the expected answer; `feedback_mean` is in [0, 1] or null."""


def table_of(traces: Iterable[Trace]) -> pa.Table:
    """The traces as rows of the governed table."""
    return pa.Table.from_pylist([_row(trace) for trace in traces], schema=SCHEMA)


def _row(trace: Trace) -> dict[str, Any]:
    row = {name: getattr(trace, name) for name in SCHEMA.names if hasattr(trace, name)}
    # A judge's score (EVAL) is an opinion of another model: kept, and no part of what users said.
    users = [score.value for score in trace.feedback if score.value is not None and score.source != "EVAL"]
    return {
        **row,
        "day": datetime.fromisoformat(trace.day).date(),
        "feedback": [{"name": s.name, "value": s.value, "source": s.source} for s in trace.feedback],
        "feedback_mean": sum(users) / len(users) if users else None,
        "feedback_count": len(users),
        "metadata": msgspec.json.encode(trace.metadata).decode(),
        "source_file": trace.file,
    }
