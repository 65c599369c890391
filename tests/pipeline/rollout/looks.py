"""Looks and evidence of arms whose users are all alike, or as told."""

from collections.abc import Sequence

import numpy as np

from pipeline.recipe import Rollout
from pipeline.rollout.evidence import ArmLook, ArmSums, LiveEvidence, LiveMetrics, UnitCounts, arm_sums
from pipeline.rollout.policy import policy_of
from pipeline.rollout.shares import Latencies, Ratio

POLICY = policy_of(Rollout())
BY_REQUEST = POLICY.model_copy(update={"unit": "request"})
RASH = POLICY.model_copy(update={"alpha": 0.9})


def sums(rows: Sequence[UnitCounts]) -> ArmSums:
    """The sums of an arm whose users did this."""
    return arm_sums({name: np.array([getattr(row, name) for row in rows], float) for name in UnitCounts.model_fields})


def arm(
    requests: float = 1000,
    quality: float = 0.7,
    *,
    users: int = 100,
    errors: float = 0,
    graded: float | None = None,
    slow: float = 0,
    timed: float = 0,
    ungraded: float = 0,
) -> ArmSums:
    """An arm whose users are alike. `errors`, `slow`, `timed` and `ungraded` are counts."""
    graded = requests - errors if graded is None else graded
    return ArmSums(
        quality=Ratio(hits=graded * quality, trials=graded, units=users if graded else 0),
        errors=Ratio(hits=errors, trials=requests, units=users if requests else 0),
        slow=Ratio(hits=slow, trials=timed, units=users if timed else 0),
        coverage=Ratio(hits=graded, trials=graded + ungraded, units=users if graded + ungraded else 0),
    )


def evidence(champion: ArmSums, canary: ArmSums, **more) -> LiveEvidence:
    return LiveEvidence(champion=champion, canary=canary, **more)


def units(prefix: str, count: int, **each: float) -> dict[str, UnitCounts]:
    return {f"{prefix}{number}": UnitCounts(**each) for number in range(count)}


def arm_look(prefix: str, users: int = 10, requests: float = 10.0, **each: float) -> ArmLook:
    answered = users * requests
    each = {"requests": requests, "graded": requests, "correct": requests, **each}
    latencies = Latencies(edges_s=(1.0, 2.0), counts=(answered, 0.0)) if answered else Latencies()
    return ArmLook(units=units(prefix, users, **each), latencies=latencies)


def look(champion: ArmLook | None = None, canary: ArmLook | None = None, start: float = 0.0, end: float = 60.0, **more):
    arms = {"champion": champion or arm_look("a"), "canary": canary or arm_look("b")}
    return LiveMetrics(**arms, window_start=start, window_end=end, **{"graded_until": end, **more})
