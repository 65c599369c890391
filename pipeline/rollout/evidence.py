"""What a look sees and what the looks of one stage add up to, by unit: a user where the router is sticky, else the
request. The tally by unit is an object of its own; an event holds its sums, which is all that the rules need."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pipeline.core.storage import Record
from pipeline.rollout.policy import RolloutPolicy, Unit
from pipeline.rollout.shares import Latencies, Ratio, frozen_threshold, influence, ratio, variance

MIN_GRADED = 30
"""Graded requests in each arm below which the normal approximation is not to be trusted."""
GRADED_SHARE = 0.95
"""Of what can be graded, by either arm: until when this much is, grades are complete."""

Count = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A metrics server may answer NaN, which is no count."""


class UnitCounts(Record):
    """What one unit did in one arm."""

    requests: Count = 0
    graded: Count = 0
    """Answers that were graded; quality is `correct / graded`. They may be to requests of an earlier look."""
    correct: Count = 0
    errors: Count = 0
    """Requests that got no answer; an answer that another arm gave is one of these too."""
    slow: Count = 0
    ungraded: Count = 0
    """Answers that should have a grade by now and have none: their share is compared between the arms."""
    timed: Count = 0
    """In a stage's tally: requests that `slow` is of, seen since the threshold is frozen."""


class ArmLook(Record):
    units: dict[str, UnitCounts]
    """By salted hash of the unit's id. Where the unit is the request: one entry, "", with the sums."""
    latencies: Latencies = Latencies()

    def sum(self) -> UnitCounts:
        sums = {name: sum(getattr(each, name) for each in self.units.values()) for name in UnitCounts.model_fields}
        return UnitCounts(**sums)


class LiveMetrics(Record):
    """What both arms did between two moments (seconds since the epoch)."""

    champion: ArmLook
    canary: ArmLook
    window_start: float
    window_end: float
    graded_until: float
    """Until when at least 95% of what can be graded in either arm is: the dwell counts to the earlier of the two."""


class LookRequest(Record):
    since: float
    """The window starts here or later: what was seen before is not seen again."""
    now: float
    slow_over_s: float | None
    """Requests that took longer are counted as slow; None until the threshold is frozen."""
    graded_since: float | None = None
    """Grades are of requests from here until `graded_until`, so that one that comes late is counted, and once; None, in
    the first look of a stage: from where the window starts."""


class StageTally(Record):
    """What each unit did during a stage. Written before the event that names its digest."""

    champion: dict[str, UnitCounts] = Field(default_factory=dict[str, UnitCounts])
    canary: dict[str, UnitCounts] = Field(default_factory=dict[str, UnitCounts])
    latencies: Latencies = Latencies()
    """The champion's, until they freeze the threshold."""
    silent: float = 0
    """Requests to the canary since it last answered one."""
    graded_until: float | None = None
    """Until when grades of the stage's own requests were counted."""
    earlier: dict[str, float] = Field(default_factory=dict[str, float])
    """How much each unit moved the earlier stages' `PooledDrop.total`."""

    def plus(self, look: LiveMetrics, slow_over_s: float | None) -> StageTally:
        """With one more look. `slow_over_s`: what it was asked with; None: none of its requests is compared with the
        threshold."""
        seen, timed = look.canary.sum(), slow_over_s is not None
        return StageTally(
            champion=_added(self.champion, look.champion.units, timed),
            canary=_added(self.canary, look.canary.units, timed),
            latencies=self.latencies.plus(look.champion.latencies) if slow_over_s is None else Latencies(),
            silent=self.silent + seen.requests if seen.requests <= seen.errors else 0,
            graded_until=max(look.graded_until, look.window_start if self.graded_until is None else self.graded_until),
            earlier=self.earlier,
        )

    def moved(self) -> Iterator[tuple[str, float]]:
        """How much units move this stage's weighted drop, in either arm."""
        arms = [_columns(each) for each in (self.champion, self.canary)]
        champion, canary = (float(arm["graded"].sum()) for arm in arms)
        weight = champion * canary / (champion + canary or 1)
        for units, arm, sign in zip((self.champion, self.canary), arms, (weight, -weight), strict=True):
            if weight:
                yield from zip(units, (sign * influence(arm["correct"], arm["graded"])).tolist(), strict=True)

    def closed(self) -> StageTally:
        """What the tally of the next stage begins with."""
        earlier = dict(self.earlier)
        for unit, by in self.moved():
            earlier[unit] = earlier.get(unit, 0.0) + by
        return StageTally(earlier=earlier)


def _added(tallies: Mapping[str, UnitCounts], units: Mapping[str, UnitCounts], timed: bool) -> dict[str, UnitCounts]:
    added, none = dict(tallies), UnitCounts()
    for name, seen in units.items():
        own, new = vars(tallies.get(name, none)), {**vars(seen), **({"timed": seen.requests} if timed else {"slow": 0})}
        added[name] = UnitCounts(**{field: own[field] + count for field, count in new.items()})
    return added


class ArmSums(Record):
    """One arm of a stage: four shares, each with its spread over units."""

    quality: Ratio = Ratio()
    errors: Ratio = Ratio()
    """Requests without an answer of all; its units are those that were seen at all."""
    slow: Ratio = Ratio()
    coverage: Ratio = Ratio()

    @property
    def requests(self) -> float:
        return self.errors.trials

    @property
    def users(self) -> float:
        """1 where the unit is the request."""
        return self.errors.units

    @property
    def graded(self) -> float:
        return self.quality.trials


class PooledDrop(Record):
    """The fall of quality, champion to canary, over stages: that of each stage by itself, weighed by what its arms had
    at the same time (Mantel-Haenszel), so that a shift of weights or of traffic is not taken for one."""

    weight: float = 0
    total: float = 0
    """Sum of the stages' falls, each times its weight."""
    squares: float = 0
    """Variance of that sum, between units that come back in several stages."""


class LiveEvidence(Record):
    """What the looks of one stage add up to: all that the rules need."""

    champion: ArmSums = ArmSums()
    """At the last stage, the holdback."""
    canary: ArmSums = ArmSums()
    both: float = 0
    silent: float = 0
    slow_over_s: float | None = None
    """Frozen once in a rollout: the limit times the champion's p99, upper end."""
    graded_until: float | None = None
    earlier: PooledDrop = PooledDrop()
    """Of the stages before this one."""
    shared: float = 0
    """Covariance of their total and this stage's weighted drop: users come back."""
    at_resume: tuple[ArmSums, ArmSums] = (ArmSums(), ArmSums())
    """Champion and canary when a person resumed the stage: their shares of traffic and grades are tested from there."""
    both_at_resume: float = 0

    def quality_variance(self, unit: Unit) -> float:
        """Of the difference of both arms' quality; infinite when unknown. Never below that of one answer in doubt."""
        if not self.canary.graded:
            return math.inf
        apart = variance(self.champion.quality, unit) + variance(self.canary.quality, unit)
        return max(apart, 1 / self.canary.graded**2)

    def pooled(self, unit: Unit) -> PooledDrop:
        """Of this stage and those before."""
        one, other, earlier = self.champion.quality, self.canary.quality, self.earlier
        if not one.trials * other.trials:
            return earlier
        weight = one.trials * other.trials / (one.trials + other.trials)
        squares = earlier.squares + 2 * self.shared + weight**2 * self.quality_variance(unit)
        total = earlier.total + weight * (one.share - other.share)
        return PooledDrop(weight=earlier.weight + weight, total=total, squares=squares)

    def fresh(self) -> LiveEvidence:
        """Where a stage starts over, with an empty tally: nothing but the threshold."""
        return LiveEvidence(slow_over_s=self.slow_over_s)

    def closed(self, unit: Unit) -> LiveEvidence:
        """Where the next stage starts from, with the tally of this one. An unknown variance is not pooled."""
        pooled = self.pooled(unit)
        return self.fresh().model_copy(update={"earlier": pooled if math.isfinite(pooled.squares) else self.earlier})

    def skipped_to(self, at: float) -> LiveEvidence:
        """Where requests up to then are counted by no look: their grades are not either."""
        late = self.graded_until is not None and self.graded_until < at
        return self.model_copy(update={"graded_until": at}) if late else self

    def resumed(self) -> LiveEvidence:
        """Where a stage that was held goes on: harm goes on being proven, shares are tested from here."""
        return self.model_copy(update={"at_resume": (self.champion, self.canary), "both_at_resume": self.both})


def summed(tally: StageTally, before: LiveEvidence, policy: RolloutPolicy) -> LiveEvidence:
    """The sums of a stage's tally; what was frozen before stays so."""
    champion, canary = _columns(tally.champion), _columns(tally.canary)
    both = len(tally.champion.keys() & tally.canary.keys()) if policy.unit == "user" else 0
    moved = tally.moved() if tally.earlier else ()
    return before.model_copy(
        update={
            "champion": arm_sums(champion),
            "canary": arm_sums(canary),
            "both": both,
            "silent": tally.silent,
            "slow_over_s": before.slow_over_s or frozen_threshold(tally.latencies, policy.max_p99_latency_ratio),
            "graded_until": tally.graded_until,
            "shared": sum(by * tally.earlier.get(unit, 0.0) for unit, by in moved),
        }
    )


def arm_sums(units: Mapping[str, NDArray[np.float64]]) -> ArmSums:
    """`units`: the fields of UnitCounts, an array of shape (units,) each."""
    return ArmSums(
        quality=ratio(units["correct"], units["graded"]),
        errors=ratio(units["errors"], units["requests"]),
        slow=ratio(units["slow"], units["timed"]),
        coverage=ratio(units["graded"], units["graded"] + units["ungraded"]),
    )


def _columns(tallies: Mapping[str, UnitCounts]) -> dict[str, NDArray[np.float64]]:
    names = list(UnitCounts.model_fields)
    rows = np.array([attrgetter(*names)(each) for each in tallies.values()], dtype=np.float64)
    return dict(zip(names, rows.reshape(-1, len(names)).T, strict=True))


def complete_until(graded: Sequence[tuple[float, bool]], until: float) -> float:
    """Until when at least 95% of one arm's answers have a grade; `until` where all together have. `graded`: when each
    was given, in that order, and whether it has one."""
    done = list(accumulate(has_grade for _, has_grade in graded))
    for count in range(len(graded), 0, -1):
        if done[count - 1] >= GRADED_SHARE * count:
            return until if count == len(graded) else math.nextafter(graded[count][0], 0)
    return math.nextafter(graded[0][0], 0) if graded else until
