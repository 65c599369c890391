"""Rollouts through the real controller. Part `rollback`: ticks from the one that decides a rollback to that which reads
0% back. Part `whole`: the share of canaries that the defaults promote, of equal ones, and of those that lose 3 and 5
points."""

import math
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import NormalDist

import numpy as np

from benchmarks.rollout_world import FIELDS, World, histogram, like
from pipeline.core.estimate import share
from pipeline.core.storage import Store
from pipeline.recipe import Rollout
from pipeline.rollout.evidence import ArmLook, LiveMetrics, LookRequest, UnitCounts
from pipeline.rollout.policy import policy_of
from pipeline.rollout.record import Phase, read_events
from pipeline.rollout.router import Split
from pipeline.rollout.shares import Latencies
from tests.pipeline.rollout.conftest import NAME, POLICY, FusedStore
from tests.pipeline.rollout.conftest import World as Deployment

HARM = ({"quality": 0.2}, {"error_rate": 0.2}, {"error_rate": 1.0, "graded": 0.0}, {"seconds": 9.0})


def rollback(small: bool, pool: ProcessPoolExecutor) -> dict[str, float | int | None]:
    """The most ticks of any, as `rollback_ticks`; None where a canary that does harm was not taken back."""
    stages = range(1 if small else len(POLICY.weights))
    ticks = [_ticks(stage, harm) for stage, harm in product(stages, HARM)]
    return {"rollback_ticks": None if None in ticks else max(each for each in ticks if each is not None)}


def _ticks(stage: int, harm: dict[str, float]) -> int | None:
    with tempfile.TemporaryDirectory() as folder:
        world = Deployment(Store(folder))
        world.propose("new")
        while (world.state.phase, world.state.stage) != (Phase.OBSERVING, stage):
            world.tick(50.0)
        world.metrics.canary = harm
        decided: int | None = None
        for tick in range(60):
            world.tick(50.0)
            if decided is None and any(event.phase is Phase.ROLLING_BACK for event in read_events(world.store, NAME)):
                decided = tick
            if decided is not None and world.weight() == 0 and not world.state.active:
                return tick - decided
        return None


MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
LOOK_S = 43_200.0
"""Half a day, so that a rollout of weeks is a hundred ticks."""
DEFAULTS = policy_of(Rollout(look_every_s=LOOK_S, lease_s=1e7))
QUALITY, ERRORS, GRADED = 0.7, 0.01, 0.97
LOSSES = {"harmless_promoted": 0.0, "loss3_promoted": 0.03, "loss5_promoted": 0.05}
PRODUCTIONS = (World(0, 0.0, requests=4_000), World(1_000, 0.005, requests=4_000))
"""Requests by themselves; users who come back: after a month at 5% a difference of theirs has twice the variance."""


class Production:
    """What both arms really do between two looks. Without users the unit is the request."""

    def __init__(self, world: World, loss: float, seed: int) -> None:
        self._world, self._loss, self._rng = world, loss, np.random.default_rng(seed)
        self._right = like(self._rng, QUALITY, world, world.users or 2)
        self._place = self._rng.permutation(world.users) / max(1, world.users)

    def look(self, split: Split, request: LookRequest) -> LiveMetrics:
        rng, users, share = self._rng, self._world.users, split.canary_weight / 100
        canary = self._place < share if users else np.array([False, True])
        shares = np.full(users, 1 / users) if users else [1 - share, share]
        count = rng.multinomial(rng.poisson(self._world.requests), shares)
        errors = rng.binomial(count, ERRORS)
        graded = rng.binomial(count - errors, GRADED)
        correct = rng.binomial(graded, self._right * np.where(canary, 1 - self._loss / QUALITY, 1.0))
        slow = 0.0 if request.slow_over_s is None else NormalDist().cdf(-math.log(request.slow_over_s))
        columns = (count, graded, correct, errors, rng.binomial(count - errors, slow), count - errors - graded)
        rows = [UnitCounts(**dict(zip(FIELDS, row, strict=False))) for row in np.column_stack(columns).tolist()]
        arms = [
            {str(n) if users else "": rows[n] for n in np.flatnonzero((canary == own) & (count > 0))} for own in (0, 1)
        ]
        taken = histogram(np.exp(rng.standard_normal(2_500))) if request.slow_over_s is None else Latencies()
        return LiveMetrics(
            champion=ArmLook(units=arms[0], latencies=taken),
            canary=ArmLook(units=arms[1]),
            window_start=request.since,
            window_end=request.now,
            graded_until=request.now,
        )


def rollout(world: World, loss: float, seed: int) -> tuple[Phase, float]:
    """The phase in which it ended, or in which a person is asked; and days."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        deployed = Deployment(FusedStore(folder), Production(world, loss, seed))
        deployed.propose("new", policy=DEFAULTS.model_copy(update={"unit": "user" if world.users else "request"}))
        begun, state = deployed.now, deployed.state
        while state.active and state.phase is not Phase.HELD:
            state = deployed.tick(LOOK_S).state
        return state.phase, (deployed.now - begun) / 86_400


def whole(small: bool, pool: ProcessPoolExecutor) -> dict[str, float | int | None]:
    return dict(rollouts(2 if small else 400, small))


def rollouts(runs: int, small: bool) -> dict[str, float]:
    """Share of canaries that are promoted by the defaults, of so many rollouts in each production: that of the worse
    one. `small`: without users."""
    figures = dict[str, float]()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for name, loss in LOSSES.items():
            shares: list[float] = []
            for world in PRODUCTIONS[: 1 if small else None]:
                ends = list(pool.map(partial(rollout, world, loss), range(runs), chunksize=max(1, runs // 16)))
                days = [days for phase, days in ends if phase is Phase.PROMOTED]
                asked = share(sum(phase is Phase.HELD for phase, _ in ends), runs)
                took = f" in {np.percentile(days, [50, 95]).round(1)} days" if days else ""
                print(f"{name}, {world.users} users: {share(len(days), runs)}{took}, people asked {asked}", flush=True)
                shares.append(len(days) / runs)
            figures[name] = max(shares) if loss else min(shares)
    return figures
