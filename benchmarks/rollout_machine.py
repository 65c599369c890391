"""Parts `machine` (runs of the rollout's state machine, each process from a seed, to be drawn again)
and `rollback` (ticks from the one that decides a rollback to the one that reads 0% back)."""

from __future__ import annotations

import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from hypothesis import HealthCheck, seed, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis.stateful import run_state_machine_as_test

from pipeline.core.storage import Store
from pipeline.rollout.record import Phase, read_events
from tests.pipeline.rollout.conftest import NAME, POLICY, World
from tests.pipeline.rollout.machine import RolloutMachine

RUNS, STEPS, SHARE = 5_000, 50, 50


def machine(small: bool, pool: ProcessPoolExecutor) -> dict[str, float | int | None]:
    """`machine_runs` that were completed, of `machine_steps` each, and the `violations` among them."""
    return shares(2 if small else RUNS // SHARE, pool)


def shares(count: int, pool: ProcessPoolExecutor) -> dict[str, float | int | None]:
    """That many times 50 runs."""
    outcomes: list[bool] = []
    for outcome in pool.map(_share, range(count)):
        outcomes.append(outcome)
        print(f"machine: {len(outcomes) * SHARE:,} runs, {outcomes.count(False)} violations", flush=True)
    return {"machine_runs": sum(outcomes) * SHARE, "machine_steps": STEPS, "violations": outcomes.count(False)}


def _share(number: int) -> bool:
    chosen = settings(
        max_examples=SHARE,
        stateful_step_count=STEPS,
        phases=[HypothesisPhase.generate],
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large),
    )
    try:
        run_state_machine_as_test(seed(number)(RolloutMachine), settings=chosen)
    except Exception as violation:  # boundary: an invariant, or whatever the code under it raised
        print(f"machine, seed {number}: {type(violation).__name__}: {violation}", flush=True)
        return False
    return True


HARM = ({"quality": 0.2}, {"error_rate": 0.2}, {"error_rate": 1.0, "graded": 0.0}, {"seconds": 9.0})


def rollback(small: bool, pool: ProcessPoolExecutor) -> dict[str, float | int | None]:
    """The most ticks of any, as `rollback_ticks`; None where a canary that does harm was not taken back."""
    stages = range(1 if small else len(POLICY.weights))
    ticks = [_ticks(stage, harm) for stage, harm in product(stages, HARM)]
    return {"rollback_ticks": None if None in ticks else max(each for each in ticks if each is not None)}


def _ticks(stage: int, harm: dict[str, float]) -> int | None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Store(folder))
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
