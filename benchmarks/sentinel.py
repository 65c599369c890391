"""How soon the sentinel sees what goes wrong, and how often it cries wolf: `python -m benchmarks.sentinel [--small]`. A
plant counts as detected when it says STOP before a quarter of its steps. The last line is JSON: `detected_share` of all
and of the worst plant, `false_stop_share`, `seeds`."""

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from statistics import median
from typing import NamedTuple

from benchmarks.kills import ENVIRONMENT
from benchmarks.parts import options
from pipeline.core.estimate import share
from pipeline.recipe import Sentinel
from pipeline.training.sentinel import review

Row = dict[str, float]
PROCESSES = 2
CLEAN_RUNS = {"GRPO, 32 steps": 31, "GRPO, 100 steps": 4, "DPO, 60 steps": 16}


class Job(NamedTuple):
    plant: str
    seed: int


class Outcome(NamedTuple):
    """What the sentinel said of one training. `held_at`, `stopped_at`, `solved_at`: the first step, None for never."""

    job: Job
    rows: int
    held_at: int | None
    stopped_at: int | None
    solved_at: int | None
    rule: str
    """That stopped it, else the first that held it."""


def main() -> None:
    parser = options(__doc__, "two plants and a clean training, within a minute or two")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each plant")
    parser.add_argument("--clean", type=int, default=max(CLEAN_RUNS.values()), help="most of each clean setting")
    chosen = parser.parse_args()
    os.environ |= ENVIRONMENT
    plants, clean = names(chosen.small)
    jobs = [Job(name, seed) for seed in range(1, 2 if chosen.small else chosen.seeds + 1) for name in plants]
    most = {name: 1 if chosen.small else min(chosen.clean, CLEAN_RUNS[name]) for name in clean}
    jobs += [Job(name, seed) for name in clean for seed in range(1, most[name] + 1)]
    found: defaultdict[str, list[Outcome]] = defaultdict(list)
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run, job) for job in jobs]):
            outcome = done.result()
            found[outcome.job.plant].append(outcome)
            print(describe(outcome), flush=True)
    print(json.dumps(summarise(found, plants, clean)))


def names(small: bool) -> tuple[list[str], list[str]]:
    from benchmarks.sentinel_plants import CLEAN, PLANTS

    plants, clean = [plant.name for plant in PLANTS], [plant.name for plant in CLEAN]
    return (["NaN reward", "DPO collapse"], clean[-1:]) if small else (plants, clean)


def run(job: Job) -> Outcome:
    """One training in this process, as far as its trainer would go; of a planted one a quarter of its steps at most."""
    from benchmarks.sentinel_plants import CLEAN, PLANTS, train

    plant = next(plant for plant in (*PLANTS, *CLEAN) if plant.name == job.plant)
    limit = plant.steps if plant in CLEAN else plant.steps // 4
    return judge(job, train(plant, job.seed, lambda rows: len(rows) >= limit or ended(rows)))


def ended(rows: Sequence[Row]) -> bool:
    """Whether the trainer would end here, before its last step."""
    health = review(rows, Sentinel())
    return health.verdict == "STOP" or health.solved is not None


def judge(job: Job, rows: Sequence[Row]) -> Outcome:
    health = review(rows, Sentinel())
    signs = [finding for finding in health.findings if finding.verdict != "PASS"]
    stops = [finding for finding in signs if finding.verdict == "STOP"]
    first = (stops or signs or [None])[0]
    return Outcome(
        job,
        len(rows),
        signs[0].step if signs else None,
        stops[0].step if stops else None,
        health.solved.step if health.solved else None,
        first.rule if first else "",
    )


def describe(outcome: Outcome) -> str:
    words = "PASS"
    if outcome.held_at:
        words = f"STOP at {outcome.stopped_at}" if outcome.stopped_at else f"HOLD at {outcome.held_at}"
    solved = f" solved at {outcome.solved_at}" if outcome.solved_at else ""
    return f"{outcome.job.plant:<18} seed {outcome.job.seed:<3} {outcome.rows:>4} rows  {words} {outcome.rule}{solved}"


def summarise(found: dict[str, list[Outcome]], plants: Sequence[str], clean: Sequence[str]) -> dict[str, object]:
    """Print a line for each plant and clean setting; returns the figures."""
    for name in (*plants, *clean):
        stopped = [outcome.stopped_at for outcome in found[name] if outcome.stopped_at]
        held = sum(outcome.held_at is not None for outcome in found[name])
        solved = sum(outcome.solved_at is not None for outcome in found[name])
        when = f"median step {median(stopped):g}" if stopped else ""
        rules = ", ".join(sorted({outcome.rule for outcome in found[name] if outcome.rule}))
        stops = share(len(stopped), len(found[name]))
        print(f"{name:<18} stopped {stops}, held or stopped {held}, solved {solved}  {when}  {rules}")
    detected = {name: [outcome.stopped_at is not None for outcome in found[name]] for name in plants}
    judged = [outcome for name in clean for outcome in found[name]]
    planted = [hit for hits in detected.values() for hit in hits]
    stops = sum(outcome.stopped_at is not None for outcome in judged)
    holds = sum(outcome.held_at is not None for outcome in judged)
    return {
        "detected_share": round(sum(planted) / len(planted), 4),
        "detected_interval": interval(sum(planted), len(planted)),
        "detected_share_worst_plant": min(round(sum(hits) / len(hits), 4) for hits in detected.values()),
        "false_stop_share": round(stops / len(judged), 4),
        "false_stop_interval": interval(stops, len(judged)),
        "false_hold_share": round(holds / len(judged), 4),
        "seeds": max(map(len, detected.values())),
        "clean_runs": len(judged),
    }


def interval(hits: int, n: int) -> list[float | None]:
    estimate = share(hits, n)
    return [None if bound is None else round(bound, 4) for bound in (estimate.low, estimate.high)]


if __name__ == "__main__":
    main()
