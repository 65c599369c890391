"""The tables of preference data: their columns, their rows, and how they are published. A call in a message stays JSON
text: Arrow would merge the structs of different tools into one of all their keys."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.core.conversation import FIELDS
from pipeline.selection.evidence import PromptStats
from pipeline.selection.pairing import LabelledRow, Pair
from pipeline.selection.unpaired import is_liked

Groups = Mapping[str, Sequence[LabelledRow]]
"""Rows by their prompt."""
Row = tuple[str, dict[str, Any]]
"""A prompt, and the other columns but `cluster`."""


def chat_of(*names: str) -> pa.DataType:
    return pa.list_(pa.struct([(name, pa.string()) for name in names]))


TURNS = chat_of(*FIELDS[:2])
"""Messages of role and content."""
CHAT = chat_of(*FIELDS[:3])
"""Messages that may hold calls."""
WHOLE_CHAT = chat_of(*FIELDS)
"""Messages with calls and their results."""
PAIRS = pa.schema(
    [
        ("prompt", TURNS),
        ("chosen", TURNS),
        ("rejected", TURNS),
        ("margin", pa.float64()),
        ("chosen_trace", pa.string()),
        ("rejected_trace", pa.string()),
        ("origin", pa.string()),  # traces, samples, or the name and licence of an import
        ("cluster", pa.string()),
    ]
)
PROMPTS = pa.schema(
    [
        ("prompt", TURNS),
        ("reference", pa.string()),
        ("verifier", pa.string()),  # the kind of check
        ("attempts", pa.int64()),  # verified completions on record
        ("pass_rate", pa.float64()),  # of them; null without any
        ("frontier", pa.bool_()),  # right and wrong ones among them
        ("trace_ids", pa.list_(pa.string())),  # whose question it is
        ("cluster", pa.string()),
    ]
)
THUMBS = pa.schema(
    [
        ("prompt", CHAT),
        ("completion", pa.string()),
        ("label", pa.bool_()),  # liked
        ("principal", pa.string()),  # the user, else the session, else the trace
        ("trace_id", pa.string()),
        ("origin", pa.string()),
        ("cluster", pa.string()),
    ]
)
WINNERS = pa.schema(
    [
        ("prompt", CHAT),
        ("completion", pa.string()),
        ("score", pa.float64()),
        ("trace_ids", pa.list_(pa.string())),  # whose question it is
        ("origin", pa.string()),
        ("cluster", pa.string()),
    ]
)


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """The rows as a table; the type of `prompt` is WHOLE_CHAT where a message needs it, else as in `schema`."""
    held = schema.field("prompt").type.value_type
    names = {held.field(n).name for n in range(held.num_fields)}
    used = {name for row in rows for message in row["prompt"] for name, value in message.items() if value is not None}
    at = schema.get_field_index("prompt")
    fitting = schema if used <= names else schema.set(at, pa.field("prompt", WHOLE_CHAT))
    return pa.Table.from_pylist([dict(row) for row in rows], fitting)


def to_rows(prompt: str) -> list[dict[str, str]]:
    messages: list[dict[str, Any]] = json.loads(prompt)
    return [{name: _text(value) for name, value in message.items() if value is not None} for message in messages]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def table(schema: pa.Schema, clusters: Mapping[str, str], rows: Iterable[Row]) -> pa.Table:
    """`clusters`: by prompt."""
    named = [{"prompt": to_rows(prompt), **rest, "cluster": clusters[prompt]} for prompt, rest in rows]
    return table_of(named, schema)


def pair_rows(pairs: Iterable[Pair]) -> Iterator[Row]:
    for pair in pairs:
        chosen, rejected = ([{"role": "assistant", "content": row.completion}] for row in pair.rows)
        traces = {"chosen_trace": pair.chosen.trace_id, "rejected_trace": pair.rejected.trace_id}
        origin = " and ".join(dict.fromkeys(map(_origin, pair.rows)))
        yield pair.prompt, {"chosen": chosen, "rejected": rejected, "margin": pair.margin, "origin": origin, **traces}


def _origin(row: LabelledRow) -> str:
    return row.origin or ("samples" if row.fresh else "traces")


def prompt_rows(prompts: Iterable[PromptStats]) -> Iterator[Row]:
    for each in prompts:
        rest = {name: getattr(each, name) for name in ("reference", "verifier", "attempts", "trace_ids")}
        yield each.prompt, {**rest, "pass_rate": each.right / each.attempts, "frontier": each.status == "frontier"}


def unverified_rows(groups: Groups) -> Iterator[Row]:
    """Prompts without a reference."""
    for prompt, group in groups.items():
        if not any(row.reference for row in group):
            yield prompt, {"attempts": 0, "frontier": False, "trace_ids": [row.trace_id for row in group]}


def thumb_rows(thumbs: Iterable[LabelledRow]) -> Iterator[Row]:
    for row in thumbs:
        rest = {"completion": row.completion, "principal": row.user_id, "trace_id": row.trace_id}
        yield row.prompt, {**rest, "label": is_liked(row), "origin": _origin(row)}


def winner_rows(winners: Iterable[LabelledRow], groups: Groups) -> Iterator[Row]:
    """An import's are as good as declared."""
    for row in winners:
        score, rows = (row.final_reward, groups[row.prompt]) if row.fresh else (1.0, [row])
        rest = {"completion": row.completion, "score": score, "trace_ids": [each.trace_id for each in rows]}
        yield row.prompt, {**rest, "origin": _origin(row)}
