"""Runs of the rollout's state machine with crashes, people, faults of router, slot and clock: the part `machine`.

Each process draws runs of its own from a seed, so a run that breaks an invariant can be drawn again. The first
violation of a process is printed and ends that process's share.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

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
        phases=[Phase.generate],
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
