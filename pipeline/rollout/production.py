"""Quality of both arms from production's own traces, by the model version that each one names; the unit is the request.

Only what the gates admit is graded, and a grade is the composed reward. Quality is complete until the newest instant by
which 95% of what can be graded in either arm is.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol, Self, cast

import msgspec

from pipeline.core.storage import Record, digest_json
from pipeline.recipe import Rewards
from pipeline.recipe.traces import Traces
from pipeline.rewards.samples import samples
from pipeline.rollout.evidence import ArmLook, LiveMetrics, LookRequest, UnitCounts, complete_until
from pipeline.rollout.grading import NO_SIGNAL, Label, composed, label_digest_of, rated, thumbs
from pipeline.rollout.router import Arm, Split
from pipeline.serving.served_names import HEAD, digest_head
from pipeline.traces.attributes import merged
from pipeline.traces.batch import BatchBuilder
from pipeline.traces.erased import NOBODY, Forgotten
from pipeline.traces.gates import GateRules, check
from pipeline.traces.rows import Attributes, Score, Trace
from pipeline.traces.scores import Meanings
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, named_day

PLACES = ("version", "trace_version", "release")
"""Keys of a trace's metadata beside its model that may name who answered (Langfuse's fields); `tags` is a list."""


class QualityLook(Record):
    """Grades of both arms between two moments."""

    champion: UnitCounts
    canary: UnitCounts
    graded_until: float
    """Until when at least 95% of what can be graded in either arm is."""
    label_digest: str
    """Of all that decides a grade."""
    unknown_version: int
    """Traces that name no model of the split, or two."""
    admitted: tuple[float, float]
    """Share of the traces of champion and canary that the gates admit: they answer for no others."""


class ProductionQuality:
    """Reads the configured source at each look."""

    def __init__(
        self,
        address: Address,
        traces: Traces,
        rewards: Rewards,
        model_name: str,
        erased: Callable[[], Forgotten] = lambda: NOBODY,
        label: Label | None = None,
    ) -> None:
        """`erased`: who is forgotten, asked at each look. `label`: grades in place of the recipe's composed
        reward."""
        self._rated_within_s: float | None = None
        self._meanings = Meanings(traces.scores)
        self._said: dict[tuple[str, str], list[dict[str, Any]]] = {}
        """What was said of each answer, as of the last look."""
        self._address, self._traces, self._rewards, self._model_name = address, traces, rewards, model_name
        self._erased, self._label = erased, label or composed(rewards)
        self._digest = label_digest_of(rewards)

    def by_thumbs(self, rated_within_s: float) -> Self:
        """The same, where what users say within that time is all that grades."""
        own, feedback = copy(self), self._rewards.feedback.model_copy(update={"prior_strength": 0.0})
        own._rewards = self._rewards.model_copy(update={"feedback": feedback})
        own._label, own._rated_within_s = thumbs, rated_within_s
        own._digest = digest_json(["thumbs", self._digest])
        return own

    def look(self, split: Split, request: LookRequest) -> QualityLook | None:
        """Grades of answers after `graded_since` (or `since`); None without a canary.

        Raises ValueError or OSError when the source cannot be read.
        """
        if split.canary is None:
            return None
        since = request.since if request.graded_since is None else request.graded_since
        arms: dict[str, Arm] = {split.champion.digest[:HEAD]: "champion", split.canary.digest[:HEAD]: "canary"}
        if len(arms) < 2:
            raise ValueError(f"Both arms are {split.champion.digest[:HEAD]}: their traces cannot be told apart.")
        traces, newest = self._between(since, request.now)
        of = {trace.trace_id: arms.get(version_of(trace, self._model_name)) for trace in traces}
        seen: dict[Arm, list[Trace]] = {arm: [t for t in traces if of[t.trace_id] == arm] for arm in arms.values()}
        rows: dict[Arm, list[_RewardedAnswer]] = {arm: self._graded(seen[arm], request.now) for arm in seen}
        if self._rated_within_s is None:
            until = min(
                (
                    *(
                        complete_until([(each.at, each.reward is not None) for each in graded], newest)
                        for graded in rows.values()
                    ),
                    request.now,
                )
            )
        else:  # who will still say something is unknown
            until = min(newest, request.now - self._rated_within_s)
        counts = {arm: _counts([row for row in graded if row.at <= until]) for arm, graded in rows.items()}
        shares = [len(self._admitted(each, request.now)) / len(each) if each else 1.0 for each in seen.values()]
        return QualityLook(
            champion=counts["champion"],
            canary=counts["canary"],
            graded_until=until,
            label_digest=self._digest,
            unknown_version=sum(arm is None for arm in of.values()),
            admitted=(shares[0], shares[1]),
        )

    def _between(self, since: float, until: float) -> tuple[list[Trace], float]:
        """The last call of each trace in that time, with what is told of it in other rows, and the newest moment that
        the source knows of: nothing after it was exported yet."""
        source = open_source(self._address)
        parts = source.parts()
        first, last = (_moment(at).date() + timedelta(days=days) for at, days in ((since, -1), (until, 1)))
        self._said = {}
        scores: dict[str, list[Score]] = defaultdict(list)
        attributes: dict[str, Attributes] = {}
        calls: dict[str, Trace] = {}
        newest = since
        for part in parts:
            day = named_day(part.name)
            if day and (day < first.isoformat() or (part.holds == "calls" and day > last.isoformat())):
                continue
            for rows in source.rows(part, hashlib.sha256()):
                for score in rows.scores:
                    scores[score.trace_id].append(score)
                for row in rows.attributes:
                    attributes[row.trace_id] = max(attributes.get(row.trace_id, row), row, key=_updated)
                for trace in rows.traces:
                    at = _utc(trace.timestamp).timestamp()
                    newest = max(newest, at if at <= until else since)
                    if since < at <= until:
                        before = calls.get(trace.trace_id, trace)
                        calls[trace.trace_id] = max(before, trace, key=lambda t: (_utc(t.timestamp), _updated(t)))
        for trace in calls.values():
            if (row := attributes.get(trace.trace_id)) is not None:
                trace.user_id, trace.session_id = trace.user_id or row.user_id, trace.session_id or row.session_id
                trace.metadata = merged(trace.metadata, row.metadata)
            by_id = {score.id: score for score in scores.get(trace.trace_id, ())}
            self._said[trace.trace_id, trace.observation_id] = [
                {"name": score.name, "value": self._meanings.of(score).value}
                for score in by_id.values()
                if score.observation_id in (None, trace.observation_id)
            ]
        return sorted(calls.values(), key=lambda trace: _utc(trace.timestamp)), newest

    def _admitted(self, traces: Sequence[Trace], now: float) -> list[dict[str, Any]]:
        """The rows that the gates let pass, as the governed table has them."""
        batch, _ = BatchBuilder(self._traces, "production").batch(traces)
        rules = GateRules(self._traces, _moment(now), self._erased())
        checked, reasons = check(batch, rules)
        return [row for row, reason in zip(checked.to_pylist(), reasons, strict=True) if reason is None]

    def _graded(self, traces: Sequence[Trace], now: float) -> list[_RewardedAnswer]:
        """In the order of time, without those that nothing can grade."""
        rows = self._admitted(traces, now)
        settings = self._rewards.feedback
        keys = [(row["trace_id"], row["observation_id"]) for row in rows]
        opinions = {key: rated(self._said.get(key, ()), settings) for key in keys}
        held = samples(rows, opinions, self._rewards)
        findings = self._label(held)
        assert len(findings) == len(held), "every answer gets a label or a reason"
        graded = [
            _RewardedAnswer(_utc(sample.timestamp).timestamp(), finding.value)
            for sample, finding in zip(held, findings, strict=True)
            if finding.reason != NO_SIGNAL
        ]
        return sorted(graded, key=lambda each: each.at)


def version_of(trace: Trace, model_name: str) -> str:
    """The digest's first 12 digits that a trace names for a model; "" where it names none, or two that differ."""
    metadata = _object(trace.metadata)
    tags = metadata.get("tags")
    listed = cast("list[Any]", tags) if isinstance(tags, list) else []
    names = [trace.model, *(metadata.get(place) for place in PLACES), *listed]
    heads = {digest_head(name, model_name) for name in names if isinstance(name, str)} - {""}
    return heads.pop() if len(heads) == 1 else ""


class OperationsPort(Protocol):
    """Requests, errors and latencies of both arms, ungraded."""

    def look(self, split: Split, request: LookRequest) -> LiveMetrics | None: ...


class GradedLooks:
    """LiveMetricsPort of a metrics server's operations with grades from production's traces, by request."""

    def __init__(
        self, operations: OperationsPort, quality: ProductionQuality, log: Callable[[str], None] = lambda line: None
    ) -> None:
        self._operations, self._quality, self._log = operations, quality, log

    def look(self, split: Split, request: LookRequest) -> LiveMetrics | None:
        """None where either is. Raises what they do."""
        seen = self._operations.look(split, request)
        if seen is None:
            return None
        # Grades begin and end where the operations do: what came after is the next look's.
        within = {"since": seen.window_start, "now": seen.window_end}
        quality = self._quality.look(split, request.model_copy(update=within))
        if quality is None:
            return None
        arms = {"champion": _merged(seen.champion, quality.champion), "canary": _merged(seen.canary, quality.canary)}
        if quality.unknown_version:
            self._log(f"quality: {quality.unknown_version} traces name neither of the two models")
        return seen.model_copy(
            update={
                **arms,
                "graded_until": quality.graded_until,
                "label_digest": quality.label_digest,
                "readable": quality.admitted,
            }
        )


class _RewardedAnswer(NamedTuple):
    """An answer that should have a grade, and its reward once it has one."""

    at: float
    reward: float | None


def _counts(graded: Sequence[_RewardedAnswer]) -> UnitCounts:
    rewards = [each.reward for each in graded if each.reward is not None]
    return UnitCounts(graded=len(rewards), correct=sum(rewards), ungraded=len(graded) - len(rewards))


def _merged(arm: ArmLook, grades: UnitCounts) -> ArmLook:
    counts = arm.units.get("", UnitCounts())
    update = {name: getattr(grades, name) for name in ("graded", "correct", "ungraded")}
    return arm.model_copy(update={"units": {"": counts.model_copy(update=update)}})


def _updated(row: Attributes | Trace) -> datetime:
    return _utc(row.updated_at) if row.updated_at else datetime.min.replace(tzinfo=UTC)


def _utc(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _object(metadata: str) -> dict[str, Any]:
    value = msgspec.json.decode(metadata)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
