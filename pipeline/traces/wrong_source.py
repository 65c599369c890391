"""What is the matter with a source of which next to nothing is admitted: said from a look at its first parts.

Owns the look: some rows of a few parts, read once more and only in this case. It names metadata keys, never a value,
and the kind of source that the files look like. Refuses to decide whether a source is wrong: `floor` does.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from pipeline.recipe.traces import Traces
from pipeline.traces.floor import NO_EVIDENCE, RowCounts
from pipeline.traces.pii import Unmaskable, mask
from pipeline.traces.prompt_sets import LAYOUTS
from pipeline.traces.records import Reason
from pipeline.traces.sources.files import Files
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, SourcePart

PARTS, BLOCKS, ROWS, KEYS = 3, 2, 1000, 20
"""Parts of calls and of attributes that are looked into, blocks of each, rows of these, and keys that are shown."""
REASONS = 4
LINES = 5
"""Lines of a file that are looked at for its kind."""
LONGEST_KEY = 40
NO_FILES = ("postgres_table", "langfuse_api", "mlflow", "custom")
"""Kinds of sources whose parts are no files that could be looked into."""
# Keys of a row, or of a file that is one value, by which a kind is known; the first that fits.
KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("otel", ("resourceSpans",)),
    ("langfuse_ui", ("trace", "observations")),
    ("langfuse_export", ("trace_id", "start_time", "type")),
    ("openai_logs", ("request", "response")),
    ("openai_logs", ("custom_id", "response")),
    ("openai_logs", ("choices",)),
    ("openai_logs", ("messages", "model")),
    *(("prompts", layout) for layout in LAYOUTS),
)


class SourceInspection(NamedTuple):
    """What some rows of the source have: metadata keys with their number of rows, and why a row was no trace."""

    rows: int
    keys: Counter[str]
    details: dict[Reason, str]


def explain(tally: RowCounts, address: Address, parts: Sequence[SourcePart], settings: Traces) -> str:
    """What was admitted and what was not, why by the looks of it, and what to do."""
    share = f"{tally.admitted:,} of {tally.eligible or tally.seen:,} rows admitted"
    look = _look(address, parts)
    most = sorted(tally.rejected.items(), key=lambda item: -item[1])
    blamed = next((reason for reason, _ in most if reason not in NO_EVIDENCE), None)
    reasons = [f"{r} {n:,}" + (f" ({look.details[r]})" if look.details.get(r) else "") for r, n in most[:REASONS]]
    kind = likely_kind(address, parts)
    floor = f"traces.min_admitted_share (now {settings.min_admitted_share:g})"
    advice = f"Mend the source or the recipe's gates, or lower {floor} if all is right."
    if blamed is Reason.CONSENT:  # then the rows could be read
        advice = _about_consent(look, settings.consent_key)
    elif blamed is Reason.REGION:
        advice = f"Name the regions whose traces may be read in traces.regions_allowed (now {list(settings.regions)})."
    elif kind and kind != settings.reader:
        advice = f"These look like a {kind}: set traces.source.kind to {kind}."
    under = f"under the floor of {100 * settings.min_admitted_share:g}%"
    return f"{tally.name}: {share}, {under}. Rejected: {'; '.join(reasons)}. Nothing was published. {advice}"


def likely_kind(address: Address, parts: Sequence[SourcePart]) -> str:
    """The `traces.source.kind` that reads the first of these files, by its keys; empty where none is known to."""
    calls = [part for part in parts if part.holds == "calls"]
    if not calls or address.section.kind in NO_FILES:
        return ""
    try:
        head = next(Files(address.uri).chunks(calls[0], hashlib.sha256()), b"")
    except Exception:  # boundary: it is a hint about a source that is wrong already, whatever it holds
        return ""
    keys = _keys(head)
    return next((kind for kind, wanted in KINDS if keys.issuperset(wanted)), "")


def _about_consent(look: SourceInspection, key: str) -> str:
    shown = ", ".join(f"{_shown(name)} ({rows:,})" for name, rows in look.keys.most_common(KEYS)) or "none"
    if look.keys[key]:
        return (
            f"Of {look.rows:,} rows looked at {look.keys[key]:,} have the metadata key {key!r}, and next to none says "
            "yes. Ask for consent, or set traces.consent_key to another key; keys seen: " + shown + "."
        )
    return (
        f"Of {look.rows:,} rows looked at no row has the metadata key {key!r}; keys seen: {shown}. "
        "Set traces.consent_key to the one that says whether a user agreed to training."
    )


def _look(address: Address, parts: Sequence[SourcePart]) -> SourceInspection:
    rows, keys = 0, Counter[str]()
    details: dict[Reason, str] = {}
    source = open_source(address)
    for holds in ("calls", "attributes"):
        for part in islice((part for part in parts if part.holds == holds), PARTS):
            try:
                blocks = list(islice(source.rows(part, hashlib.sha256()), BLOCKS))
            except Exception:  # boundary: as above
                continue
            for block in blocks:
                for row in (*block.traces[:ROWS], *block.attributes[:ROWS]):
                    keys.update(_object(row.metadata).keys())
                rows += len(block.traces[:ROWS])
                for rejection in block.rejected:
                    details.setdefault(rejection.reason, rejection.detail)
    return SourceInspection(rows, keys, details)


def _keys(head: bytes) -> frozenset[str]:
    """Keys of the first rows of a file, or of the one value that it is; of half a value, all that look like keys."""
    for text in [*head.split(b"\n")[:LINES], head]:
        try:
            value: Any = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            continue
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, dict):
            return frozenset(map(str, value))
    return frozenset(key.decode() for key in re.findall(rb'"(\w+)"\s*:', head))


def _object(text: str) -> dict[str, Any]:
    try:
        parsed = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _shown(key: str) -> str:
    """A key as it may be printed: people have put names and addresses into keys."""
    try:
        return mask(key) if len(key) <= LONGEST_KEY else f"{mask(key[:LONGEST_KEY])}..."
    except Unmaskable:
        return "[BINARY]"
