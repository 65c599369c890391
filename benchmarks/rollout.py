"""How a rollout's rules do: `python -m benchmarks.rollout [--small] [PART ...]`. Parts, of one stage: `alarms` at all
limits at once, `drops` (looks until one is proven), `latency`; of all: `rollback` (ticks until 0%), `whole` (who is
promoted). The rules are the real ones. The last line is JSON, with the worst cell of each part."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.parts import chosen, measure, options
from benchmarks.rollout_machine import rollback, whole
from benchmarks.rollout_world import Model, World, draw, watched
from pipeline.core.estimate import share
from pipeline.recipe import Rollout
from pipeline.rollout.policy import policy_of
from pipeline.rollout.rules import comparability_problem, harm

Figures = dict[str, float | int | None]
PROCESSES = 2
POLICY = policy_of(Rollout())
LIMIT = Model(0.7 - POLICY.max_quality_drop, 0.01 * POLICY.max_error_rate_ratio, POLICY.max_p99_latency_ratio)
"""A canary that does exactly what is still allowed, in everything."""
WORLDS = tuple(
    World(users, icc, heavy) for users in (200, 2_000, 10_000) for icc in (0.0, 0.1, 0.3) for heavy in (False, True)
)


class Trial(NamedTuple):
    """One stage to be drawn and watched."""

    world: World
    canary: Model
    weight: int
    looks: int
    seed: int


class Outcome(NamedTuple):
    """Looks at which it was first rolled back, and first held; None for never."""

    harm: int | None
    reason: str
    hold: int | None


def watch(trial: Trial, holds: bool = True) -> Outcome:
    """Until harm is proven; with `holds` also until the stage is held."""
    first, reason, hold = None, "", None
    drawn = draw(trial.world, Model(), trial.canary, trial.weight, trial.looks, np.random.default_rng(trial.seed))
    for look, evidence in enumerate(watched(drawn, POLICY), 1):
        if first is None and (seen := harm(evidence, POLICY)):
            first, reason = look, seen.reason.split()[0]
        if holds and hold is None and comparability_problem(evidence, trial.weight, POLICY):
            hold = look
        if first is not None and (hold is not None or not holds):
            break
    return Outcome(first, reason, hold)


prove = partial(watch, holds=False)


def many(rule: Callable[[Trial], Outcome], trial: Trial, runs: int, pool: ProcessPoolExecutor) -> list[Outcome]:
    seeds = (trial._replace(seed=trial.seed + 1_000 * run) for run in range(runs))
    return list(pool.map(rule, seeds, chunksize=max(1, runs // 8)))


def alarms(small: bool, pool: ProcessPoolExecutor) -> Figures:
    runs, looks = (4, 48) if small else (200, 168)
    worlds = WORLDS[6:10] if small else WORLDS
    rolled_back: list[int] = []
    held: list[int] = []
    for number, (world, weight) in enumerate((world, weight) for world in worlds for weight in (5, 25)):
        seen = many(watch, Trial(world, LIMIT, weight, looks, number), runs, pool)
        rolled_back.append(sum(each.harm is not None for each in seen))
        held.append(sum(each.hold is not None for each in seen))
        why = {each.reason for each in seen if each.reason}
        print(f"{_named(world)} {weight:>2}%  rolled back {share(rolled_back[-1], runs)} {why or ''}", flush=True)
        print(f"{'':<35} held {share(held[-1], runs)}", flush=True)
    cells = len(rolled_back)
    print(f"all: rolled back {share(sum(rolled_back), runs * cells)}, held {share(sum(held), runs * cells)}")
    return {
        "false_rollback": max(rolled_back) / runs,
        "false_rollback_all": sum(rolled_back) / runs / cells,
        "false_hold": max(held) / runs,
        "false_hold_all": sum(held) / runs / cells,
        "alarm_runs": runs * cells,
    }


def drops(small: bool, pool: ProcessPoolExecutor) -> Figures:
    runs = 8 if small else 200
    figures: Figures = {}
    for name, drop, weight in (("20", 0.2, 5), ("20_at_25", 0.2, 25), ("10", 0.1, 5), ("10_at_25", 0.1, 25)):
        seen = many(prove, Trial(World(2_000, 0.1), Model(0.7 - drop), weight, 168, 77), runs, pool)
        looks = [each.harm for each in seen if each.harm is not None]
        figures[f"looks_to_prove_drop_{name}"] = median(looks) if 2 * len(looks) >= runs else None
        print(f"drop {drop:.2f} at {weight}%: proven {share(len(looks), runs)}, looks {_quartiles(looks)}", flush=True)
    return figures


def latency(small: bool, pool: ProcessPoolExecutor) -> Figures:
    """Canaries that differ in nothing but how long they take."""
    runs = 6 if small else 200
    figures: Figures = {}
    for name, slowdown in (("equal", 1.0), ("at_limit", POLICY.max_p99_latency_ratio), ("doubled", 2.0)):
        worst, slowest = 0, 0.0
        for sigma in (1.0, 2.0):
            for icc in (0.0, 0.1):
                world = World(2_000, icc, requests=1_500, sigma=sigma)
                seen = many(prove, Trial(world, Model(slowdown=slowdown), 5, 168, 5), runs, pool)
                looks = [each.harm for each in seen if each.reason.endswith("%")]
                worst, slowest = max(worst, len(looks)), max(slowest, median(looks) if looks else 168)
                print(f"latency {name} sigma {sigma} ICC {icc}: {share(len(looks), runs)}, looks {_quartiles(looks)}")
        figures[f"latency_{name}"] = slowest if name == "doubled" else worst / runs
    return figures


def _named(world: World) -> str:
    return f"{world.users:>6} users ICC {world.icc:.1f} {'heavy' if world.heavy else 'equal'}"


def _quartiles(looks: Sequence[int]) -> str:
    return "-" if not looks else "/".join(f"{at:.0f}" for at in np.percentile(looks, [25, 50, 75]))


PARTS: dict[str, Callable[[bool, ProcessPoolExecutor], Figures]] = {
    "drops": drops,
    "latency": latency,
    "alarms": alarms,
    "rollback": rollback,
    "whole": whole,
}
"""Name to what it measures, given whether it is the small run; figures of all parts go into one line."""


def main() -> None:
    asked = chosen(options(__doc__, "a few runs of each part, within a minute or two"), list(PARTS))
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        measure({name: partial(PARTS[name], asked.small, pool) for name in asked.parts})


if __name__ == "__main__":
    main()
