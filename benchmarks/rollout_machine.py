"""Part `rollback`: ticks from the one that decides a rollback to the one that reads 0% back."""

import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from pipeline.core.storage import Store
from pipeline.rollout.record import Phase, read_events
from tests.pipeline.rollout.conftest import NAME, POLICY, World

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
