"""The rollout's metrics from what the gateway recorded, by unit and arm: a request counts for the arm that it was sent
to. What the gates would not admit is not graded."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import msgspec

from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.recipe.traces import Traces
from pipeline.rollout.evidence import ArmLook, LiveMetrics, LookRequest, UnitCounts
from pipeline.rollout.gateway.feedback import scores_since
from pipeline.rollout.gateway.spans import FLUSH_S, RecordedRequest, recorded
from pipeline.rollout.grading import Grading, ServedAnswer
from pipeline.rollout.router import Split
from pipeline.rollout.shares import Latencies
from pipeline.traces.arrow import pc
from pipeline.traces.batch import REFERENCE_KEY, BatchBuilder
from pipeline.traces.erased import Forgotten, forgotten
from pipeline.traces.gates import GateRules, confidential, consent, erased, region
from pipeline.traces.rows import Trace
from pipeline.traces.scores import Meanings

WATERMARK_S = 2 * FLUSH_S
"""What was written so long ago is in the files."""
EDGES_S = (*(round(1e-3 * 1.02**step, 9) for step in range(760)), math.inf)
"""Of the histogram of latencies: 1 ms to 56 minutes, each 2% above the one before."""


class SpanMetrics:
    """LiveMetricsPort of the gateway of one model."""

    def __init__(self, store: Store, model_name: str, grading: Grading, traces: Traces) -> None:
        """`traces`: under which keys a request says whether its answer may be read, and what counts as a yes."""
        self._store, self._model_name, self._grading = store, model_name, grading
        self._traces, self._meanings = traces, Meanings(traces.scores)

    def look(self, split: Split, request: LookRequest) -> LiveMetrics | None:
        """What both arms did under a split; None without a canary. The window is empty before anything can have been
        written."""
        if split.canary is None:
            return None
        until = max(request.since, request.now - WATERMARK_S)
        graded_since = request.since if request.graded_since is None else request.graded_since
        served = self._store.path(layout.served(self._model_name))
        rows = [row for row in recorded(served, min(request.since, graded_since), until) if _is_of(row, split)]
        seen = [row for row in rows if row.at > request.since]
        by_thumbs = self._grading.rated_within_s is not None
        answered = [row for row in rows if row.at > graded_since and _is_answered(row, with_text=not by_thumbs)]
        allowed = answered  # what a user says is counted, and no answer is read
        if not by_thumbs:
            may_read = readable(answered, self._traces, forgotten(self._store), request.now)
            allowed = [row for row, is_readable in zip(answered, may_read, strict=True) if is_readable]
        scores: Mapping[str, Sequence[Mapping[str, Any]]] = {}
        if by_thumbs and allowed:
            scores = scores_since(self._store.path(layout.feedback(self._model_name)), allowed[0].at, self._meanings)
        answers = [_answer(row)._replace(feedback=scores.get(row.trace_id, ())) for row in allowed]
        units, graded_until = self._grading.counted(answers, until, request.now)
        for row in seen:
            slow = request.slow_over_s is not None and row.latency_s > request.slow_over_s
            units[row.arm][row.unit].update(requests=1, errors=row.failed, slow=slow)
        champion, canary = (
            ArmLook(
                units={unit: UnitCounts(**counts) for unit, counts in units[arm].items()},
                latencies=_latencies([row.latency_s for row in seen if row.arm == arm]),
            )
            for arm in units
        )
        return LiveMetrics(
            champion=champion,
            canary=canary,
            window_start=request.since,
            window_end=until,
            graded_until=graded_until,
        )


def _latencies(seconds: Sequence[float]) -> Latencies:
    counts = Counter(bisect_left(EDGES_S, each) for each in seconds)
    return Latencies(edges_s=EDGES_S, counts=tuple(float(counts[place]) for place in range(len(EDGES_S))))


def _is_answered(row: RecordedRequest, with_text: bool) -> bool:
    """Whether an answer was recorded that its arm alone gave."""
    whole = ("gen_ai.output.messages" in row.marks or not with_text) and "rollout.aborted" not in row.marks
    return whole and not row.failed


def _answer(row: RecordedRequest) -> ServedAnswer:
    messages, text = row.texts()
    reasons = row.marks.get("gen_ai.response.finish_reasons") or [""]
    reference, user = str(row.marks.get(REFERENCE_KEY) or ""), row.marks.get("user.id")
    own = ServedAnswer(messages, text, reasons[0] == "stop", reference, user_id=None if user is None else str(user))
    return own._replace(at=row.at, arm=row.arm, unit=row.unit)


def _is_of(row: RecordedRequest, split: Split) -> bool:
    """Whether a request is evidence on this split: sent under its weight."""
    return row.marks["rollout.id"] == split.rollout and row.marks["rollout.weight"] == split.canary_weight


def readable(rows: Sequence[RecordedRequest], settings: Traces, forgotten: Forgotten, now: float) -> list[bool]:
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
