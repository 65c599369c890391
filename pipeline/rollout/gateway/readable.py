"""Which recorded answers may be read to be graded: those that the traces stage would admit as far as people decide it.

Consent, region and confidentiality stand under the keys that the recipe names, and who was forgotten stays so. Owns
asking the gates; refuses to have a rule of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import reduce

import msgspec

from pipeline.recipe.traces import Traces
from pipeline.rollout.gateway.span_files import RecordedRequest
from pipeline.traces.arrow import pc
from pipeline.traces.batch import BatchBuilder
from pipeline.traces.erased import Forgotten
from pipeline.traces.gates import GateRules, confidential, consent, erased, region
from pipeline.traces.rows import Trace


def readable(rows: Sequence[RecordedRequest], settings: Traces, forgotten: Forgotten, now: float) -> list[bool]:
    """Of each request."""
    if not rows:
        return []
    batch, _ = BatchBuilder(settings, "gateway").batch([_trace(n, row) for n, row in enumerate(rows)])
    rules = GateRules(settings, datetime.fromtimestamp(now, UTC), forgotten)
    objections = reduce(pc.or_, (gate(batch, rules) for gate in (erased, consent, region, confidential)))
    positions = set(batch["line"].filter(pc.invert(pc.fill_null(objections, True))).to_pylist())
    return [n in positions for n in range(len(rows))]


def _trace(position: int, row: RecordedRequest) -> Trace:
    """What the gates go by, without its texts."""
    user = row.marks.get("user.id")
    return Trace(
        trace_id="",
        observation_id="",
        timestamp=datetime.fromtimestamp(row.at, UTC),
        model="",
        user_id=None if user is None else str(user),
        session_id=None,
        messages=[],
        completion="",
        line=position,
        metadata=msgspec.json.encode(row.marks).decode(),
    )
