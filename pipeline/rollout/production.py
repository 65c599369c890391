"""Quality of both arms from production's own traces, by the model version that each one names; the unit is the request.
Only what the gates admit is graded. Quality is complete until 95% of what can be graded in either arm is."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, takewhile
from typing import Any, NamedTuple, cast

import msgspec

from pipeline.recipe import Rewards
from pipeline.recipe.traces import Traces
from pipeline.rewards.samples import UNKNOWN, samples
from pipeline.rollout.evidence import ArmLook, LiveMetrics, LookRequest, UnitCounts
from pipeline.rollout.grading import Grading, ServedAnswer
from pipeline.rollout.router import Arm, LiveMetricsPort, Split
from pipeline.serving.endpoint import HEAD, digest_head
from pipeline.traces.batch import BatchBuilder
from pipeline.traces.erased import NOBODY, Forgotten
from pipeline.traces.gates import GateRules, check
from pipeline.traces.rows import Score, Trace
from pipeline.traces.scores import Meanings
from pipeline.traces.sources.fields import EPOCH
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, Probed, named_day

DAY_S = 86_400.0
PLACES = ("version", "release")
"""Keys of a trace's metadata, next to its model, that may name who answered (Langfuse's fields); `tags` is a list."""


_Said = dict[tuple[str, str], list[dict[str, Any]]]
"""What was said of each answer: names and values of scores."""


class ProductionTraces(NamedTuple):
    """Where production's traces are, which of them may be read, and who is forgotten, asked at each look."""

    address: Address
    rules: Traces
    model_name: str
    erased: Callable[[], Forgotten] = lambda: NOBODY


class ProductionLooks:
    """LiveMetricsPort of a metrics server's operations, with grades from production's traces by request: the configured
    source is read at each look."""

    def __init__(
        self,
        operations: LiveMetricsPort,
        production: ProductionTraces,
        grading: Grading,
        rewards: Rewards,
        log: Callable[[str], None],
    ) -> None:
        """`rewards`: those that `grading` goes by, for how a reference is compared."""
        self._operations, self._production = operations, production
        self._grading, self._rewards, self._log = grading, rewards, log
        self._meanings = Meanings(production.rules.scores)

    def look(self, split: Split, request: LookRequest) -> LiveMetrics | None:
        """None where there are no operations. Raises what they do, and ValueError or OSError when the source cannot be
        read. Grades begin and end where the operations do: what came after is the next look's."""
        seen = self._operations.look(split, request)
        if seen is None or split.canary is None:
            return None
        now, since = seen.window_end, seen.window_start if request.graded_since is None else request.graded_since
        arms: dict[str, Arm] = {split.champion.digest[:HEAD]: "champion", split.canary.digest[:HEAD]: "canary"}
        traces, said, newest = self._between(since, now)
        versions = [version_of(trace, self._production.model_name) for trace in traces]
        own = [(trace, arms[version]) for trace, version in zip(traces, versions, strict=True) if version in arms]
        if unknown := len(traces) - len(own):
            self._log(f"quality: {unknown} traces name neither of the two models")
        arm_of = {(trace.trace_id, trace.observation_id): arm for trace, arm in own}
        answers: list[ServedAnswer] = []
        for each in samples(self._admitted([trace for trace, _ in own], now), {}, self._rewards):
            if each.unscored or each.kind == UNKNOWN:
                continue
            key, reference, owner = (each.trace_id, each.observation_id), each.reference or "", each.user_id
            at = _utc(each.timestamp).timestamp()
            answer = ServedAnswer(each.messages, each.completion, True, reference, said.get(key, ()), owner)
            answers.append(answer._replace(kind=each.task.kind, at=at, arm=arm_of[key]))
        units, until = self._grading.counted(sorted(answers, key=lambda each: each.at), min(newest, now), now)
        champion, canary = _merged(seen.champion, units["champion"][""]), _merged(seen.canary, units["canary"][""])
        return seen.model_copy(update={"champion": champion, "canary": canary, "graded_until": until})

    def _between(self, since: float, until: float) -> tuple[list[Trace], _Said, float]:
        """The last call of each trace in that time; what was said of each answer; and the newest moment that the
        source knows of: nothing after it was exported yet."""
        source = open_source(self._production.address)
        first, last = (datetime.fromtimestamp(at, UTC).date() for at in (since - DAY_S, until + DAY_S))
        scores: dict[str, dict[str, Score]] = defaultdict(dict)
        calls: dict[str, Trace] = {}
        newest = since
        for part in source.parts():
            day = named_day(part.name)
            if day and (day < first.isoformat() or (part.holds == "calls" and day > last.isoformat())):
                continue
            for rows in source.rows(part, hashlib.sha256()):
                for score in rows.scores:
                    scores[score.trace_id][score.id] = score
                for trace in rows.traces:
                    at = _utc(trace.timestamp).timestamp()
                    newest = max(newest, at if at <= until else since)
                    if since < at <= until:
                        before = calls.get(trace.trace_id, trace)
                        calls[trace.trace_id] = max(before, trace, key=lambda t: (t.timestamp, t.updated_at or EPOCH))
        said: _Said = {}
        for trace in calls.values():
            said[trace.trace_id, trace.observation_id] = [
                {"name": score.name, "value": self._meanings.of(score).value}
                for score in scores[trace.trace_id].values()
                if score.observation_id in (None, trace.observation_id)
            ]
        return sorted(calls.values(), key=lambda trace: _utc(trace.timestamp)), said, newest

    def _admitted(self, traces: Sequence[Trace], now: float) -> list[dict[str, Any]]:
        batch, _ = BatchBuilder(self._production.rules, "production").batch(traces)
        rules = GateRules(self._production.rules, datetime.fromtimestamp(now, UTC), self._production.erased())
        checked, reasons = check(batch, rules)
        return [row for row, reason in zip(checked.to_pylist(), reasons, strict=True) if reason is None]


def requests_a_day(address: Address, most: int = 20_000) -> float | None:
    """The rate of about `most` of the source's newest requests; None where no files tell it."""
    times: dict[str, float] = {}
    with suppress(ValueError, OSError):  # whoever reads all of it says what is wrong
        source = open_source(address._replace(imports=()))
        newest = () if isinstance(source, Probed) else reversed(source.parts())
        blocks = chain.from_iterable(source.rows(part, hashlib.sha256()) for part in newest)
        for rows in takewhile(lambda _: len(times) < most, blocks):
            times.update({trace.trace_id: _utc(trace.timestamp).timestamp() for trace in rows.traces})
    span = max(times.values(), default=0.0) - min(times.values(), default=0.0)
    return len(times) / span * DAY_S if span else None


def version_of(trace: Trace, model_name: str) -> str:
    """The digest's first 12 digits that a trace names for a model; "" where it names none, or two that differ."""
    value = msgspec.json.decode(trace.metadata)
    metadata = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    tags = metadata.get("tags")
    listed = cast("list[Any]", tags) if isinstance(tags, list) else []
    names = [trace.model, *(metadata.get(place) for place in PLACES), *listed]
    heads = {digest_head(name, model_name) for name in names if isinstance(name, str)} - {""}
    return heads.pop() if len(heads) == 1 else ""


def _merged(arm: ArmLook, counts: Mapping[str, int]) -> ArmLook:
    return arm.model_copy(update={"units": {"": arm.units.get("", UnitCounts()).model_copy(update=dict(counts))}})


def _utc(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)
