"""The rollout's metrics from what the gateway recorded, by unit and arm: a request counts for the arm that it was sent
to. Pinned requests, conversations that switched models and what the gates would not admit are not graded."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import msgspec

from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.recipe.traces import Traces
from pipeline.rollout.evidence import ArmLook, LiveMetrics, LookRequest, UnitCounts, complete_until
from pipeline.rollout.gateway.feedback import scores_since
from pipeline.rollout.gateway.span_files import RecordedRequest, recorded
from pipeline.rollout.gateway.spans import FLUSH_S
from pipeline.rollout.grading import GRADES, PENDING, Grading, ServedAnswer
from pipeline.rollout.router import Arm, Split
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
        arms: dict[Arm, _Arm] = {"champion": _Arm(), "canary": _Arm()}
        for row in rows:
            if row.at > request.since:
                arms[_arm(row)].count(row, request.slow_over_s)
        by_thumbs = self._grading.rated_within_s is not None
        answered = [row for row in rows if row.at > graded_since and _is_answered(row, with_text=not by_thumbs)]
        allowed = answered  # what a user says is counted, and no answer is read
        if not by_thumbs:
            may_read = readable(answered, self._traces, forgotten(self._store), request.now)
            allowed = [row for row, is_readable in zip(answered, may_read, strict=True) if is_readable]
        graded_until = self._graded(allowed, arms, until, request.now)
        return LiveMetrics(
            champion=arms["champion"].look(),
            canary=arms["canary"].look(),
            window_start=request.since,
            window_end=until,
            graded_until=graded_until,
            label_digest=self._grading.digest,
            readable=(_share_of(allowed, answered, "champion"), _share_of(allowed, answered, "canary")),
        )

    def _graded(self, rows: Sequence[RecordedRequest], arms: Mapping[Arm, _Arm], until: float, now: float) -> float:
        """Count the grades of answers; returns until when those of both arms are complete."""
        wait_s = self._grading.rated_within_s
        scores: Mapping[str, Sequence[Mapping[str, Any]]] = {}
        if wait_s is not None and rows:
            scores = scores_since(self._store.path(layout.feedback(self._model_name)), rows[0].at, self._meanings)
        answers = [_answer(row)._replace(feedback=scores.get(row.trace_id, ())) for row in rows]
        outcomes = list(self._grading.grade(answers)) if rows else []
        assert len(outcomes) == len(rows), "the grader grades every answer"
        if wait_s is None:
            graded = [(row, each) for row, each in zip(rows, outcomes, strict=True) if each in (*GRADES, PENDING)]
            by_arm = [[(row.at, each != PENDING) for row, each in graded if _arm(row) == arm] for arm in arms]
            complete = min(complete_until(each, until) for each in by_arm)
        else:  # who will still say something is unknown
            graded, complete = list(zip(rows, outcomes, strict=True)), min(until, now - wait_s)
        for row, outcome in graded:
            if row.at <= complete:
                arms[_arm(row)].graded(row, outcome)
        return complete


class _Arm:
    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}
        self._latencies = [0] * len(EDGES_S)

    def count(self, row: RecordedRequest, slow_over_s: float | None) -> None:
        counts = self._of(row)
        counts["requests"] += 1
        counts["errors"] += row.failed
        counts["slow"] += slow_over_s is not None and row.latency_s > slow_over_s
        self._latencies[bisect_left(EDGES_S, row.latency_s)] += 1

    def graded(self, row: RecordedRequest, outcome: str) -> None:
        counts = self._of(row)
        counts["graded"] += outcome in GRADES
        counts["correct"] += outcome == "correct"
        counts["ungraded"] += outcome not in GRADES

    def look(self) -> ArmLook:
        units = {unit: UnitCounts(**counts) for unit, counts in self._counts.items()}
        return ArmLook(units=units, latencies=Latencies(edges_s=EDGES_S, counts=tuple(map(float, self._latencies))))

    def _of(self, row: RecordedRequest) -> dict[str, int]:
        return self._counts.setdefault(row.marks["rollout.unit"], dict.fromkeys(UnitCounts.model_fields, 0))


def _is_answered(row: RecordedRequest, with_text: bool) -> bool:
    """Whether an answer was recorded that its arm alone gave, in a conversation that it has to itself."""
    marks = row.marks
    whole = ("gen_ai.output.messages" in marks or not with_text) and "rollout.aborted" not in marks
    return whole and "rollout.switched" not in marks and not row.failed


def _answer(row: RecordedRequest) -> ServedAnswer:
    messages, text = row.texts()
    reasons = row.marks.get("gen_ai.response.finish_reasons") or [""]
    reference, user = str(row.marks.get(REFERENCE_KEY) or ""), row.marks.get("user.id")
    return ServedAnswer(messages, text, reasons[0] == "stop", reference, user_id=None if user is None else str(user))


def _share_of(allowed: Sequence[RecordedRequest], answered: Sequence[RecordedRequest], arm: Arm) -> float:
    """1 where the arm gave no answer."""
    total = sum(_arm(row) == arm for row in answered)
    return sum(_arm(row) == arm for row in allowed) / total if total else 1.0


def _arm(row: RecordedRequest) -> Arm:
    return row.marks["rollout.arm"]


def _is_of(row: RecordedRequest, split: Split) -> bool:
    """Whether a request is evidence on this split: sent under its weight, and not pinned."""
    marks = row.marks
    same = marks["rollout.id"] == split.rollout and marks["rollout.weight"] == split.canary_weight
    return same and "rollout.pinned" not in marks


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
