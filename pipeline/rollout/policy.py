"""The rule of one rollout: its stages, what counts as harm, and how much evidence a stage needs.

Frozen into the record when a candidate is proposed. Refuses to look at metrics (evidence.py) and to judge them
(harm.py, doubt.py, advance.py).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

from pipeline.core.storage import Record
from pipeline.recipe import Rollout

Unit = Literal["user", "request"]
"""What a router randomises: a user where it is sticky, else each request."""


class RolloutPolicy(Record):
    """The rule of one rollout, frozen into its record when it is proposed."""

    weights: tuple[int, ...]
    """Percent on the canary, stage by stage, as the recipe has them; the last is 100."""
    dwell_s: tuple[float, ...]
    min_canary_requests: int | Literal["auto"]
    """Graded canary answers at which a stage's advance test is taken; "auto": as many as the margin needs."""
    max_quality_drop: float
    max_error_rate_ratio: float
    max_p99_latency_ratio: float
    alpha: float
    max_metrics_age_s: float
    holdback: int = 5
    """Percent that stays with the champion at the last stage until the promotion."""
    unit: Unit = "user"
    """What the router randomises."""
    gradable: bool = True
    """Whether answers can be graded at all. If not, requests, errors and latencies alone decide, and the rollout says
    that it cannot see quality."""
    by_feedback: bool = False
    """Whether what users say is all that grades: of an answer that nobody rated, nothing is known."""
    approvers: tuple[str, ...] = ()
    """People of whom one has to approve the candidate; (): the gate's verdict is enough."""
    look_every_s: float = 60.0
    max_look_s: float = 120.0
    """Longest time that one look adds to a dwell."""
    lease_s: float = 3_600.0
    keep_warm_s: float = 0.0
    requests_per_server: float | None = None
    """Requests a second that one server of a slot carries; None: not known."""
    max_wait_s: float | None = None
    """How long a stage may lack its sample once its dwell is over; None: for ever."""

    @property
    def needs_approval(self) -> bool:
        return bool(self.approvers)

    def weight_at(self, stage: int) -> int:
        """Percent on the canary: the last weight leaves the holdback with the champion."""
        return min(self.weights[stage], 100 - self.holdback)


def policy_of(
    section: Rollout, max_metrics_age_s: float = 300.0, gradable: bool = True, rated: bool = False
) -> RolloutPolicy:
    """The policy that a recipe's section spells.

    `gradable`: whether there are references or a judge to grade answers by; a gateway that records no text leaves them
    nothing to read. `rated`: whether users rate answers, which grades where nothing else does. Raises ValueError when
    the stages do not lead to 100%, or leave nothing to compare with.
    """
    weights, dwell = section.weights, section.dwell_s
    rising = all(a < b for a, b in pairwise(weights))
    if len(weights) < 2 or not rising or weights[-1] != 100:
        raise ValueError(f"rollout.weights is {weights}. Give two or more rising percentages that end in 100.")
    if len(dwell) != len(weights) or not all(0 <= d < math.inf for d in dwell):
        raise ValueError(f"rollout.dwell_s is {dwell}. Give one time in seconds for each of the weights {weights}.")
    if not 0 < section.alpha < 1:
        raise ValueError(f"rollout.alpha is {section.alpha}. Give a level between 0 and 1, such as 0.05.")
    if section.holdback == 0 or weights[-2] >= 100 - section.holdback:
        raise ValueError(
            f"rollout.holdback is {section.holdback} and the last weight before 100 is {weights[-2]}. The last stage "
            f"needs a champion to compare with and more canary than the stage before it: give a holdback between 1 "
            f"and {99 - weights[-2]}."
        )
    silent = section.traffic.kind == "gateway" and section.traffic.record == "operations"
    readable = gradable and not (silent and section.metrics.kind == "gateway")
    return RolloutPolicy(
        weights=weights,
        dwell_s=dwell,
        min_canary_requests=section.min_canary_requests,
        max_quality_drop=section.max_quality_drop,
        max_error_rate_ratio=section.max_error_rate_ratio,
        max_p99_latency_ratio=section.max_p99_latency_ratio,
        alpha=section.alpha,
        max_metrics_age_s=max_metrics_age_s,
        holdback=section.holdback,
        unit="user" if section.traffic.kind == "gateway" else "request",
        gradable=readable or rated,
        by_feedback=rated and not readable,
        approvers=section.approvers,
        look_every_s=section.look_every_s,
        max_look_s=section.max_look_s or 2 * section.look_every_s,
        lease_s=section.lease_s,
        keep_warm_s=section.keep_warm_s,
        requests_per_server=section.requests_per_server,
        max_wait_s=section.max_wait_s,
    )
