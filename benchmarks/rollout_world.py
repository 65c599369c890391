"""A simulated production for benchmarks/rollout.py: users who come back, and what both arms do to their
requests."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from pipeline.rollout.evidence import LiveEvidence, UnitCounts, arm_sums
from pipeline.rollout.policy import RolloutPolicy
from pipeline.rollout.shares import Latencies, frozen_threshold

Array = NDArray[np.float64]
FIELDS = tuple(UnitCounts.model_fields)
EDGES = tuple(float(edge) for edge in np.geomspace(0.01, 400, 220))
"""Seconds, 5% apart."""


class Model(NamedTuple):
    """How one arm behaves."""

    quality: float = 0.7
    error_rate: float = 0.01
    slowdown: float = 1.0
    """Times the champion's latencies."""


class World(NamedTuple):
    """Who asks, and how alike one user's requests are."""

    users: int
    icc: float
    heavy: bool = False
    """Pareto 1.5 in requests a user, at most 2% of the traffic each; else all alike."""
    requests: int = 400
    """A look."""
    sigma: float = 1.0
    """Of the logarithm of a latency; the median is 1 s."""
    missing: float = 0.03
    """Share of the answers that no label comes for, alike in both arms."""


class Drawn(NamedTuple):
    """All requests of one stage, in order: shape (looks, requests) each."""

    user: NDArray[np.int64]
    correct: NDArray[np.bool_]
    graded: NDArray[np.bool_]
    error: NDArray[np.bool_]
    latency: Array
    canary: NDArray[np.bool_]
    """Of each user, shape (users,)."""


def draw(world: World, champion: Model, canary: Model, weight: int, looks: int, rng: Generator) -> Drawn:
    user = rng.choice(world.users, size=(looks, world.requests), p=activity(world, rng))
    in_canary = rng.random(world.users) < weight / 100
    right, failing = np.empty(world.users), np.empty(world.users)
    ungraded = like(rng, world.missing, world, world.users)
    for arm, model in ((~in_canary, champion), (in_canary, canary)):
        right[arm] = like(rng, model.quality, world, int(arm.sum()))
        failing[arm] = like(rng, model.error_rate, world, int(arm.sum()))
    shape = user.shape
    error = rng.random(shape) < failing[user]
    noise = np.sqrt(world.icc) * rng.standard_normal(world.users)[user]
    noise += np.sqrt(1 - world.icc) * rng.standard_normal(shape)
    slowdown = np.where(in_canary, canary.slowdown, champion.slowdown)
    graded = ~error & (rng.random(shape) >= ungraded[user])
    return Drawn(
        user,
        graded & (rng.random(shape) < right[user]),
        graded,
        error,
        np.exp(world.sigma * noise) * slowdown[user],
        in_canary,
    )


def activity(world: World, rng: Generator) -> Array:
    """Each user's share of the requests."""
    if not world.heavy:
        return np.full(world.users, 1 / world.users)
    share = rng.pareto(1.5, world.users) + 1
    for _ in range(50):
        share = np.minimum(share / share.sum(), 0.02)
    return share / share.sum()


def like(rng: Generator, mean: float, world: World, count: int) -> Array:
    """A rate for each user: beta with this mean, and the world's correlation between a user's requests."""
    if world.icc == 0 or mean in (0.0, 1.0):
        return np.full(count, mean)
    spread = (1 - world.icc) / world.icc
    return rng.beta(mean * spread, (1 - mean) * spread, count)


def watched(drawn: Drawn, policy: RolloutPolicy) -> Iterator[LiveEvidence]:
    """The stage's evidence after each look, as `summed` would have it."""
    users, evidence, latencies = len(drawn.canary), LiveEvidence(), Latencies()
    sums = {name: np.zeros(users) for name in FIELDS}
    silent = 0.0
    for look in range(len(drawn.user)):
        user, threshold = drawn.user[look], evidence.slow_over_s
        counts = look_counts(drawn, look, threshold)
        for name, each in counts.items():
            sums[name] += np.bincount(user, weights=each, minlength=users)
        if threshold is None:
            latencies = latencies.plus(histogram(drawn.latency[look][~drawn.canary[user]]))
            threshold = frozen_threshold(latencies, policy.max_p99_latency_ratio)
        ours = drawn.canary[user]
        silent = silent + float(ours.sum()) if not (ours & ~drawn.error[look]).any() else 0.0
        champion, canary = (
            arm_sums({name: each[arm] for name, each in sums.items()}) for arm in (~drawn.canary, drawn.canary)
        )
        evidence = LiveEvidence(
            champion=champion,
            canary=canary,
            silent=silent,
            slow_over_s=threshold,
            graded_until=float(look + 1),
        )
        yield evidence


def look_counts(drawn: Drawn, look: int, threshold: float | None) -> dict[str, Array]:
    timed = np.full(drawn.user.shape[1], float(threshold is not None))
    return {
        "requests": np.ones(drawn.user.shape[1]),
        "graded": drawn.graded[look].astype(float),
        "correct": drawn.correct[look].astype(float),
        "errors": drawn.error[look].astype(float),
        "slow": timed * (drawn.latency[look] > (threshold or 0)),
        "ungraded": (~drawn.graded[look] & ~drawn.error[look]).astype(float),
        "timed": timed,
    }


def histogram(latencies: Array) -> Latencies:
    counts = np.bincount(np.searchsorted(EDGES, latencies), minlength=len(EDGES))[: len(EDGES)]
    return Latencies(edges_s=EDGES, counts=tuple(float(count) for count in counts))
