"""Whether a champion's answers became worse: thumbs and judged quality of labels that came later, against earlier ones.

Two shares of good answers, each tested by the sequence of the rollout's harm test with variances between users: answers
that users liked, and answers that the judge gave 4 or 5. Each gets half of alpha, and either is enough. The test may be
taken at every count as long as the earlier labels stay the same. A fall that is proven has no cause yet: users, their
questions and the feedback that is still to come may differ as well. Refuses to read texts: columns of scores alone.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.recipe import Rollout
from pipeline.rollout.grading import GOOD
from pipeline.rollout.harm import QUALITY_SCALE
from pipeline.rollout.sequences import proven
from pipeline.rollout.shares import Ratio, enough, ratio, variance
from pipeline.traces.arrow import pc

COLUMNS = ("user_id", "feedback", "judge", "judge_id")
"""Of the label table."""


class SignalChange(NamedTuple):
    """One share of good answers, before and since; `fell`: by more than the recipe allows, proven."""

    signal: str
    before: Ratio
    since: Ratio
    fell: bool

    def line(self) -> str:
        """For a person."""
        if not (self.before.trials and self.since.trials):
            return f"{self.signal}: {self.before.trials:,.0f} answers before, {self.since.trials:,.0f} since"
        return (
            f"{self.signal}: {self.before.share:.1%} good of {self.before.trials:,.0f} before, "
            f"{self.since.share:.1%} of {self.since.trials:,.0f} since"
        )


def changes(before: pa.Table, since: pa.Table, rule: Rollout, least: int) -> list[SignalChange]:
    """Thumbs, then judge. Tables with COLUMNS, one row an answer. `least`: scored answers below which nothing is
    tested, on either side."""
    judges = Counter(since["judge_id"].drop_null().to_pylist()).most_common(1)
    one = judges[0][0] if judges else None  # two judges are two scales
    pairs = [
        ("thumbs", _thumbs(before), _thumbs(since)),
        ("judge", _judged(before, one), _judged(since, one)),
    ]
    return [SignalChange(name, old, new, _fell(old, new, rule, least)) for name, old, new in pairs]


def _fell(before: Ratio, since: Ratio, rule: Rollout, least: int) -> bool:
    if not (enough(before, "user", least) and enough(since, "user", least)):
        return False
    spread = variance(before, "user") + variance(since, "user")
    return proven(before.share - since.share - rule.max_quality_drop, spread, rule.alpha / 2, QUALITY_SCALE)


def _thumbs(labels: pa.Table) -> Ratio:
    """A call's value above one half is a good answer, below it a bad one, and at it half of each."""
    scored = labels.filter(pc.is_valid(labels["feedback"]))
    return _by_user(scored, (np.sign(_values(scored, "feedback") - 0.5) + 1) / 2)


def _judged(labels: pa.Table, judge: str | None) -> Ratio:
    scored = labels.filter(
        pc.and_(pc.is_valid(labels["judge"]), pc.fill_null(pc.equal(labels["judge_id"], judge), False))
    )
    return _by_user(scored, (_values(scored, "judge") >= GOOD).astype(np.float64))


def _values(labels: pa.Table, column: str) -> NDArray[np.float64]:
    return labels[column].to_numpy().astype(np.float64)


def _by_user(labels: pa.Table, good: NDArray[np.float64]) -> Ratio:
    rows = pa.table({"user": labels["user_id"], "good": good})
    sums = rows.group_by("user").aggregate([("good", "sum"), ("good", "count")])
    return ratio(_values(sums, "good_sum"), _values(sums, "good_count"))
