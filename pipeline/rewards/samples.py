"""What labelling sees of a governed row: the completion, what it can be held against, and whose it is."""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.conversation import UNSHOWABLE, answer_of, conversation, is_whole
from pipeline.recipe.rewards import Rewards, VerifierKind
from pipeline.recipe.sources import MODELS
from pipeline.rewards.composite import Profile, profile_of
from pipeline.rewards.feedback import principal, tenant_of
from pipeline.rewards.findings import FindingLine, Source
from pipeline.rewards.records import DOES_NOT_APPLY, Finding
from pipeline.rewards.verifiers import VerifierTask
from pipeline.traces.arrow import pc
from pipeline.traces.rows import UNANSWERED
from pipeline.traces.sources.imports import REWARD_KEY

COLUMNS = (
    *("trace_id", "observation_id", "day", "timestamp", "user_id", "session_id", "consent"),
    *("messages", "completion", "tool_calls", "tools", "latency_s", "reference", "metadata"),
    *("model", "source_file"),
)
"""What labelling reads of the governed table."""

KINDS = frozenset(get_args(VerifierKind))
UNKNOWN = "unknown"
"""A kind of check that a trace names and nobody knows."""


class RewardSample(NamedTuple):
    """One governed row. `kind` may be UNKNOWN: then the check is an error of that row."""

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
    """Its text, and its calls of tools after it (pipeline/core/conversation)."""
    latency_s: float | None
    reference: str | None
    kind: str
    feedback: Finding
    unscored: str
    """Why the row gets no reward and nobody is asked about it: a call in it is none that a model can be shown, or it is
    a prompt that nobody has answered; "" for any other."""
    fresh: bool = False
    """Drawn now, and not what production answered."""
    imported: Profile | None = None
    """Of an import's row, its profile."""
    given: Finding | None = None
    """Of an import's row, its reward."""
    origin: str | None = None
    """Of an import's row, the import's name and licence."""
    metadata: str = "{}"
    """The trace's own, as a JSON object."""

    @property
    def profile(self) -> Profile:
        return profile_of(self.reference, self.feedback.value is not None, self.fresh, self.imported)

    def answered(self, completion: str) -> "RewardSample":
        """The same question with a fresh completion, of which nobody has said anything yet."""
        unknown = {"latency_s": None, "feedback": DOES_NOT_APPLY, "imported": None, "given": None, "origin": None}
        return self._replace(completion=completion, unscored="", fresh=True, **unknown)

    @property
    def task(self) -> VerifierTask:
        """What a verifier is given of a row with a reference."""
        kind: Any = self.kind
        return VerifierTask(self.completion, self.reference or "", kind)

    def line(self, key: str, source: Source, account: str, **said: Any) -> FindingLine:
        """A finding on this row."""
        owner, trace = self.user_id, self.trace_id
        return FindingLine(key=key, source=source, account=account, trace_id=trace, owner=owner, **said)

    @property
    def prompt(self) -> str:
        """The chat as canonical JSON, with the tools that were offered: equal prompts are equal strings."""
        return json.dumps(self.messages, ensure_ascii=False)


def samples(
    rows: Iterable[Mapping[str, Any]], opinions: Mapping[tuple[str, str], Finding], settings: Rewards
) -> list[RewardSample]:
    """The rows as they are scored. `rows` have the governed table's COLUMNS."""
    return [_sample(row, opinions, settings) for row in rows]


def _sample(row: Mapping[str, Any], opinions: Mapping[tuple[str, str], Finding], settings: Rewards) -> RewardSample:
    metadata: Any = {}
    with suppress(ValueError, RecursionError):
        metadata = json.loads(row["metadata"])
    metadata = metadata if isinstance(metadata, dict) else {}
    imported = row["model"] if row["model"] in MODELS else None
    # Langfuse may export the kind as JSON in text, with its quotes.
    kind = str(metadata.get(settings.verifier.kind_key) or settings.verifier.kind).strip('"')
    unscored = "" if row["completion"].strip() or row["tool_calls"] else UNANSWERED  # no gate admits an empty answer
    return RewardSample(
        trace_id=row["trace_id"],
        observation_id=row["observation_id"],
        day=row["day"].isoformat(),
        timestamp=row["timestamp"],
        user_id=row["user_id"],
        principal=principal(row["user_id"], row["session_id"], row["trace_id"]),
        tenant_id=tenant_of(metadata, settings.feedback.tenant_key),
        consent=row["consent"],
        messages=conversation(row),
        completion=answer_of(row["completion"], row["tool_calls"]),
        latency_s=row["latency_s"],
        reference=row["reference"] or None,
        kind=kind if kind in KINDS else UNKNOWN,
        feedback=opinions.get((row["trace_id"], row["observation_id"]), DOES_NOT_APPLY),
        unscored=unscored if is_whole(row["messages"], row["tool_calls"]) else UNSHOWABLE,
        imported=imported,
        given=Finding(metadata[REWARD_KEY]) if imported else None,
        origin=_origin(row["source_file"], metadata) if imported else None,
        metadata=json.dumps(metadata, ensure_ascii=False, sort_keys=True) if settings.custom else "{}",
    )


def _origin(part: str, metadata: Mapping[str, Any]) -> str:
    return f"{'/'.join(part.split('/')[:2])} ({metadata.get('licence', '')})"


def scores_of(path: Path, trace_ids: Collection[str] | None = None) -> dict[tuple[str, str], Finding]:
    """A day's settled feedback by (trace, observation): all of it, or that on some traces. Without a file, none."""
    if not path.exists():
        return {}
    table = pq.read_table(path, columns=["trace_id", "observation_id", "value", "reason"])
    if trace_ids is not None:
        table = table.filter(pc.is_in(table["trace_id"], pa.array(trace_ids, pa.string())))
    rows = table.to_pylist()
    return {(row["trace_id"], row["observation_id"]): Finding(row["value"], row["reason"]) for row in rows}
