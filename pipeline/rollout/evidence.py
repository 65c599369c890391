"""What a look sees and what the looks of one stage add up to.

Unit = what the router randomised: a user where it is sticky, else the request. An arm's variances are those of users,
who come back, so each arm is kept as one tally a unit. The tally of a stage is an object of its own beside the record;
an event holds its sums, which is all that the rules need, and its digest.
"""

from __future__ import annotations

from typing import Literal

from pipeline.storage import Record

Unit = Literal["user", "request"]


class UnitCounts(Record):
    """What one unit did in one arm. Counts are floats because a metrics server may answer NaN."""

    requests: float = 0
    graded: float = 0
    """Requests whose answer could be graded; quality is `correct / graded`."""
    correct: float = 0
    errors: float = 0
    """Requests that got no answer; an answer that another arm gave is one of these too."""
    slow: float = 0
    """Requests that took longer than the frozen threshold."""


class Latencies(Record):
    """A histogram of seconds: `counts[i]` requests took at most `edges_s[i]` and more than the edge before."""

    edges_s: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()


class ArmLook(Record):
    """One arm within one window."""

    units: dict[str, UnitCounts]
    """By salted hash of the unit's id. Where the unit is the request: one entry, "", with the sums."""
    latencies: Latencies = Latencies()
    ungraded: float = 0
    """Requests that should have a grade and have none yet: their share is compared between the arms."""


class LiveMetrics(Record):
    """What both arms did between two moments (seconds since the epoch)."""

    champion: ArmLook
    canary: ArmLook
    window_start: float
    window_end: float
    """Until when requests, errors and latencies are complete."""
    graded_until: float
    """Until when at least 95% of what can be graded in either arm is: the dwell counts to the earlier of the two."""


class LookRequest(Record):
    """What a metrics port is asked."""

    number: int
    """Of the looks of this rollout, from 1."""
    since: float
    """The window starts here or later: what was seen before is not seen again."""
    now: float
    """The window ends here or before."""
    slow_over_s: float | None
    """Requests that took longer are counted as slow; None until the threshold is frozen."""
