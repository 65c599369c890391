"""Whether the champion's answers became worse, as labels of production tell: each signal is tested as harm is, at half
of alpha. A proven fall has no cause yet."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.recipe import Rollout
from pipeline.rollout.grading import GOOD, LIKED
from pipeline.rollout.rules import QUALITY_SCALE
from pipeline.rollout.shares import Ratio, enough, proven, ratio, variance
from pipeline.traces.arrow import pc

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
