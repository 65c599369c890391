"""The rows of the traces stage: what a source yields, what the gates see, what the governed table holds."""

from datetime import datetime

import msgspec
import pyarrow as pa

from pipeline.traces.records import Reason

Message = dict[str, str]
"""`{role, content}`; of an assistant `tool_calls`, of a tool `tool_call_id` and `name` where the source has them.

`tool_calls` is the JSON text of `[{"id", "type", "function": {"name", "arguments"}}]` as OpenAI's chat has it: `id` is
there where the source gives one, and `arguments` is a string that should hold a JSON object. A call that the provider
itself executed (a web search) has its kind as `type`, where all others have "function".
"""


UNANSWERED = "unanswered"
"""Model of a row that is a prompt alone, and why it has no label."""


class Score(msgspec.Struct, gc=False):
    """One score of a trace, as its source has it; `scores` says what it means."""

    id: str
    trace_id: str
    observation_id: str | None
    name: str
    value: float | None
    """Its number, on any scale."""
    source: str
    """Who scored, in the source's words."""
    updated_at: datetime | None
    kind: str = "NUMERIC"
    """NUMERIC, BOOLEAN, CATEGORICAL, or another that holds no scale, such as TEXT."""
    word: str | None = None
    """Its category."""


class Trace(msgspec.Struct, gc=False):
    """One model call, with all that the loop may learn from it. Times without a zone are UTC."""

    trace_id: str
    observation_id: str
    timestamp: datetime
    model: str
    user_id: str | None
    session_id: str | None
    messages: list[Message]
    completion: str
    line: int
    """Its line, place or row in its part of the source, from 1."""
    updated_at: datetime | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    latency_s: float | None = None
    level: str = "DEFAULT"
    error: str | None = None
    finish_reason: str | None = None
    metadata: str = "{}"
    """A JSON object as the source gave it. Values may be JSON in text: that is how Langfuse exports them."""
    tool_calls: str | None = None
    """Tool calls of the completion, as in `Message`."""
    tools: str | None = None
    """The request's tools, as JSON text of OpenAI's definitions."""
    unreadable: str | None = None
    """Fingerprint of a shape that no reader knows: then the trace has no text, and no gate lets it pass."""
    name: str | None = None
    """Of the call, as the application gave it."""
    has_payload: bool = False
    """The source logged something other than text (an image, audio, a file) that no mask can look into."""


class Rejection(msgspec.Struct, frozen=True, gc=False):
    """A row that stays out. `detail` tells a person why, never with a word of its text."""

    line: int
    reason: Reason
    trace_id: str | None = None
    day: str | None = None
    """YYYY-MM-DD of the row itself; None: the date in the file's name counts, if it has one."""
    detail: str = ""


class Rows(msgspec.Struct):
    """Some megabytes of one part of a source, decoded. Every row of the part ends in exactly one of the lists."""

    traces: list[Trace] = []
    rejected: list[Rejection] = []
    scores: list[Score] = []


MESSAGE = pa.struct([(name, pa.string()) for name in ("role", "content", "tool_calls", "tool_call_id", "name")])
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
        pa.field("tool_calls", pa.string()),
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
        pa.field("tools", pa.string()),
    ]
)
"""The governed table. `metadata` is JSON; `reference` the expected answer; the values of `feedback` are from 0, worst,
to 1, and null for a score that is no feedback of people (`pipeline.traces.scores`); `feedback_mean` is theirs, or null;
`tool_calls` as in `Message`; `tools` the JSON text of the definitions that the request offered."""

SEEN = pa.schema(
    [
        pa.field("line", pa.int64(), nullable=False),
        pa.field("updated_at", pa.timestamp("us", tz="UTC")),
        pa.field("content_key", pa.binary(16), nullable=False),
        pa.field("finish_reason", pa.string()),
        pa.field("has_payload", pa.bool_(), nullable=False),
        pa.field("unreadable", pa.string()),
        pa.field("not_recorded", pa.string()),
        pa.field("helper", pa.bool_(), nullable=False),
        pa.field("turn", pa.uint64(), nullable=False),
        pa.field("consent_said", pa.string()),
        pa.field("region_said", pa.string()),
        pa.field("confidential_said", pa.string()),
    ]
)
"""Columns of the gates and the comparison of rows, which the table lacks. `*_said` is JSON, null where absent;
`helper` and `turn` are `pipeline.traces.answers`'s."""
