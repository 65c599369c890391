"""What labels of production tell. How long a rollout takes by last week's traffic, and with what power each stage
passes an equal canary: answers of one user resemble each other, so users who come back cost power. And whether the
champion's answers became worse, each signal tested as harm is, at half of alpha; a proven fall has no cause yet."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.core.storage import Record
from pipeline.recipe import Rollout
from pipeline.rewards.verifiers.outcome import Outcome
from pipeline.rollout.evidence import LiveEvidence, UnitCounts
from pipeline.rollout.grading import GOOD, LIKED
from pipeline.rollout.policy import RolloutPolicy
from pipeline.rollout.rules import LEVEL_Z, QUALITY_SCALE, sample_size, wanted_requests
from pipeline.rollout.shares import Ratio, enough, proven, ratio, variance
from pipeline.traces.arrow import pc

DAY_S = 86_400.0


class Traffic(Record):
    """What production did in a while, by whom."""

    requests_per_day: float
    users: float
    graded_share: float
    quality: float
    icc: float
    """Correlation of two answers to the same user, being right."""
    concentration: float
    """Chance that two requests are of the same user: 1 / users where all ask alike."""


class StagePlan(Record):
    """One stage as it will go, if next week is as last week was."""

    weight: int
    graded: int
    """Graded canary answers that the advance test takes, with what the clustering costs; 0: none can be graded."""
    days: float
    """Until the stage can end: its dwell, or its sample where that takes longer; infinite where none comes."""
    power: float | None
    """Chance that an equal canary passes; None where quality is not judged."""


def traffic_of(units: Iterable[UnitCounts], days: float) -> Traffic:
    """What these users did, one entry each, in so many days. Raises ValueError without requests."""
    counts = [(unit.requests, unit.graded, unit.correct) for unit in units if unit.requests > 0]
    rows = np.array(counts, dtype=np.float64).reshape(-1, 3)
    if not len(rows) or days <= 0:
        raise ValueError(f"{len(rows)} users in {days:g} days are no traffic to plan with. Give the rows of last week.")
    requests, graded, correct = rows.T
    answers = graded.sum()
    quality = (correct.sum() + 1) / (answers + 2)
    repeats = (graded * (graded - 1)).sum()
    residual = ((correct - quality * graded) ** 2).sum() / (quality * (1 - quality)) - answers
    again = (requests * np.maximum(requests - 1, 0)).sum() / max(1.0, requests.sum() * (requests.sum() - 1))
    return Traffic(
        requests_per_day=float(requests.sum() / days),
        users=len(rows),
        graded_share=float(answers / requests.sum()),
        quality=float(quality),
        icc=float(min(1.0, max(0.0, residual / repeats))) if repeats > 0 else 0.0,
        concentration=float(again),
    )


def plan(policy: RolloutPolicy, traffic: Traffic) -> tuple[StagePlan, ...]:
    """The stages of a rollout by this policy. Raises ValueError where no number of answers is enough."""
    return tuple(_stage(policy, traffic, policy.weight_at(n), dwell / DAY_S) for n, dwell in enumerate(policy.dwell_s))


def _stage(policy: RolloutPolicy, traffic: Traffic, weight: int, dwell_days: float) -> StagePlan:
    # What each further answer adds to the design effect: correlation times the chance of a user who comes back.
    clustering = traffic.icc * traffic.concentration / (weight / 100) if policy.unit == "user" else 0.0
    graded, wanted, share, power = 0, wanted_requests(LiveEvidence(), policy, weight), 1.0, None
    if policy.gradable:
        wanted = graded = _graded(policy, traffic.quality, weight, clustering)
        spread = traffic.quality * (1 - traffic.quality) / (1 - weight / 100)
        error = math.sqrt(spread * (1 / max(graded, 1) + clustering))
        share, power = traffic.graded_share, NormalDist().cdf(policy.max_quality_drop / error - LEVEL_Z)
    a_day = traffic.requests_per_day * share * weight / 100
    days = wanted / a_day if a_day > 0 else math.inf
    return StagePlan(weight=weight, graded=graded, days=max(days, dwell_days), power=power)


def _graded(policy: RolloutPolicy, quality: float, weight: int, clustering: float) -> int:
    if policy.min_canary_requests != "auto":
        return policy.min_canary_requests
    independent = sample_size(quality, policy.max_quality_drop, weight)
    if independent == math.inf:
        raise ValueError(
            f"rollout.max_quality_drop is {policy.max_quality_drop:g}: no number of answers is enough. Set it above 0."
        )
    return math.ceil(independent * (1 + clustering * independent))


WEEK_S = 7 * DAY_S
LABEL_COLUMNS = ("timestamp", "user_id", "outcome", "judge", "feedback")
_CHECKED: Mapping[str, float] = {each.value: each.score for each in Outcome if each.score is not None}


class LastWeek(NamedTuple):
    """Each user's requests, the days that they cover (one at least), and whether users alone graded them."""

    users: list[UnitCounts]
    days: float
    by_feedback: bool


def last_week(labels: pa.Table) -> LastWeek:
    """The seven days up to the newest row. `labels` has LABEL_COLUMNS."""
    rows = labels.to_pylist()
    times = [row["timestamp"].timestamp() for row in rows]
    newest = max(times, default=0.0)
    rows = [row for row, at in zip(rows, times, strict=True) if newest - at < WEEK_S]
    by_feedback = all(_grade(row) is None for row in rows) and any(row["feedback"] is not None for row in rows)
    users: dict[str, UnitCounts] = {}
    for row in rows:
        before, is_right = users.get(row["user_id"], UnitCounts()), _grade(row)
        if by_feedback:
            is_right = None if row["feedback"] is None else row["feedback"] > LIKED
        users[row["user_id"]] = UnitCounts(
            requests=before.requests + 1,
            graded=before.graded + (is_right is not None),
            correct=before.correct + (is_right is True),
        )
    oldest = min((at for at in times if newest - at < WEEK_S), default=newest)
    return LastWeek(list(users.values()), max(1.0, (newest - oldest) / DAY_S), by_feedback)


def _grade(row: Mapping[str, Any]) -> bool | None:
    judged: float | None = row["judge"]
    score = _CHECKED.get(row["outcome"], judged)
    return None if score is None else score >= GOOD


SIGNAL_COLUMNS = ("user_id", "feedback", "judge", "judge_id")


class SignalChange(NamedTuple):
    """One share of good answers, before and since; `fell`: by more than the recipe allows, proven."""

    signal: str
    before: Ratio
    since: Ratio
    fell: bool

    def line(self) -> str:
        if not (self.before.trials and self.since.trials):
            return f"{self.signal}: {self.before.trials:,.0f} answers before, {self.since.trials:,.0f} since"
        return (
            f"{self.signal}: {self.before.share:.1%} good of {self.before.trials:,.0f} before, "
            f"{self.since.share:.1%} of {self.since.trials:,.0f} since"
        )


def changes(before: pa.Table, since: pa.Table, rule: Rollout, least: int) -> list[SignalChange]:
    """Thumbs, then judge. Tables with SIGNAL_COLUMNS, one row an answer. `least`: scored answers below which nothing is
    tested, on either side."""
    judges = Counter(since["judge_id"].drop_null().to_pylist()).most_common(1)
    one = judges[0][0] if judges else ""  # two judges are two scales
    tables = (before, since)
    thumbs = [_by_user(each, pc.greater(each["feedback"], LIKED)) for each in tables]
    own = [each.filter(pc.equal(each["judge_id"], one)) for each in tables]
    judged = [_by_user(each, pc.greater_equal(each["judge"], GOOD)) for each in own]
    pairs = (("thumbs", *thumbs), ("judge", *judged))
    return [SignalChange(name, old, new, _fell(old, new, rule, least)) for name, old, new in pairs]


def _fell(before: Ratio, since: Ratio, rule: Rollout, least: int) -> bool:
    if not (enough(before, "user", least) and enough(since, "user", least)):
        return False
    spread = variance(before, "user") + variance(since, "user")
    return proven(before.share - since.share - rule.max_quality_drop, spread, rule.alpha / 2, QUALITY_SCALE)


def _by_user(labels: pa.Table, good: Any) -> Ratio:
    rows = pa.table({"user": labels["user_id"], "good": good}).filter(pc.is_valid(good))
    sums = rows.group_by("user").aggregate([("good", "sum"), ("good", "count")])
    return ratio(*(sums[name].to_numpy().astype(np.float64) for name in ("good_sum", "good_count")))
