"""What labelling sees of a governed row: the completion, what it can be held against, and who stands behind it.

Owns how a row says its kind of check, its tenant and its contexts. Refuses to score.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.recipe.rewards import Rewards, VerifierKind
from pipeline.rewards.composite import Profile, profile_of
from pipeline.rewards.feedback import principal, tenant_of
from pipeline.rewards.rag import contexts_of
from pipeline.rewards.records import DOES_NOT_APPLY, Finding
from pipeline.traces.arrow import pc

COLUMNS = (
    "trace_id",
    "observation_id",
    "day",
    "timestamp",
    "user_id",
    "session_id",
    "consent",
    "messages",
    "completion",
    "latency_s",
    "reference",
    "metadata",
)
"""What labelling reads of the governed table."""

KINDS = frozenset(get_args(VerifierKind))


class Sample(NamedTuple):
    """One governed row. `kind` may be a word that no verifier knows: then the check says so."""

    trace_id: str
    observation_id: str
    day: str
    timestamp: datetime
    user_id: str | None
    principal: str
    tenant_id: str | None
    consent: bool
    messages: list[dict[str, str]]
    completion: str
    latency_s: float | None
    reference: str | None
    kind: str
    feedback: Finding
    contexts: list[str]

    @property
    def profile(self) -> Profile:
        return profile_of(self.reference, self.feedback.value is not None)

    @property
    def prompt(self) -> str:
        """The chat as canonical JSON of role and content: equal prompts are equal strings."""
        return json.dumps(self.messages, ensure_ascii=False)


def samples(
    rows: Iterable[Mapping[str, Any]], opinions: Mapping[tuple[str, str], Finding], settings: Rewards
) -> list[Sample]:
    """The rows as they are scored. `rows` have the governed table's COLUMNS."""
    return [_sample(row, opinions, settings) for row in rows]


def _sample(row: Mapping[str, Any], opinions: Mapping[tuple[str, str], Finding], settings: Rewards) -> Sample:
    metadata = _object(row["metadata"])
    contexts_key = settings.rag.contexts_key if settings.rag else ""
    return Sample(
        trace_id=row["trace_id"],
        observation_id=row["observation_id"],
        day=row["day"].isoformat(),
        timestamp=row["timestamp"],
        user_id=row["user_id"],
        principal=principal(row["user_id"], row["session_id"], row["trace_id"]),
        tenant_id=tenant_of(row["metadata"], settings.feedback.tenant_key),
        consent=row["consent"],
        messages=[{"role": m["role"], "content": m["content"] or ""} for m in row["messages"]],
        completion=row["completion"],
        latency_s=row["latency_s"],
        reference=row["reference"] or None,
        kind=_plain(metadata.get(settings.verifier.kind_key)) or settings.verifier.kind,
        feedback=opinions.get((row["trace_id"], row["observation_id"]), DOES_NOT_APPLY),
        contexts=contexts_of(row["metadata"], contexts_key) if contexts_key in metadata else [],
    )


def opinions_on(path: Path, trace_ids: Sequence[str]) -> dict[tuple[str, str], Finding]:
    """The settled feedback (`feedback.OPINIONS`) on these traces, by (trace, observation)."""
    table = pq.read_table(path, columns=["trace_id", "observation_id", "value", "reason"])
    rows = table.filter(pc.is_in(table["trace_id"], pa.array(trace_ids, pa.string()))).to_pylist()
    return {(row["trace_id"], row["observation_id"]): Finding(row["value"], row["reason"]) for row in rows}


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _plain(value: Any) -> str | None:
    """A metadata value as text. Langfuse exports values as JSON in text: `"acme"` with its quotes is acme."""
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        return None
    if isinstance(value, str) and value.startswith('"'):
        try:
            return str(json.loads(value)) or None
        except ValueError:
            return value
    return str(value)
