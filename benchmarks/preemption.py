"""Goodput under pre-emptions, simulated: `python -m benchmarks.preemption [--schedules N]`.

The trainer's own decisions and account on a virtual clock (k8s/simulate.py). First goodput by profile and number of
pre-emptions, mean and worst over seeded schedules (instants uniform over the time of an undisturbed training), then
where the time of the worst number goes, then the interval between saves that simulation and Young's and Daly's rule
plan for 3 and for 300 nodes. The aim for five hours with restarts of 300 s: .93 at three, .88 at six with notice.
The last line is JSON: `goodput` and `worst` by profile and number, `time_share` by profile and cause, `interval`.
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from k8s.simulate import Profile, TimeInterval, plan_interval, run
from pipeline.recipe import Checkpoints
from pipeline.training.result import Goodput

COUNTS = (0, 1, 3, 6)
EVERY_S = 6000.0
"""Three in five hours."""
RULE = Checkpoints(interruption_every_s=EVERY_S)
PROFILES = {
    "notice, saves at SIGTERM": Profile(),
    "notice, never saves": Profile(sigterm_saves=0.0),
    "no notice": Profile(notice_s=0.0),
    "notice, Young-Daly": Profile(checkpoints=RULE),
    "no notice, Young-Daly": Profile(notice_s=0.0, checkpoints=RULE),
    "no notice, seed 003's steps": Profile(step_s=122.9, save_s=21.5, notice_s=0.0),
    "no notice, restarts of 900 s": Profile(wait_s=840.0, notice_s=0.0),
}
"""Else: steps of 48 s, a save of 8 s every 10 of them (seed 000), restarts of 300 s. Seed 003: Llama 8B, 16 B200."""
PER_NODE_H = {
    "a contended spot pool": 5.0,
    "a calm spot pool": 100.0,
    "failures alone": 6334.0,
}
"""Mean time between interruptions of one node: three in five hours on three nodes; an assumption; 419 in 54 days on
2,048 nodes (arXiv 2407.21783, section 3.3.4)."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--schedules", type=int, default=20, help="of each profile and number of pre-emptions")
    schedules = options.parse_args().schedules
    found = {name: goodputs(profile, schedules) for name, profile in PROFILES.items()}
    print(*table(found), "", sep="\n")
    print(*where(found), "", sep="\n", flush=True)
    planned = {(name, nodes): plan_interval(Profile(), nodes, hours * 3600)
               for name, hours in PER_NODE_H.items() for nodes in (3, 300)}  # fmt: skip
    print(*intervals(planned), "", sep="\n")
    print(json.dumps(summary(found, planned)))


def goodputs(profile: Profile, schedules: int) -> dict[int, list[Goodput]]:
    """By number of pre-emptions, one account for each schedule."""
    whole_s = run(profile, ()).total_s

    def one(count: int, seed: int) -> Goodput:
        dice = random.Random(f"{count}/{seed}")
        return run(profile, [dice.uniform(0, whole_s) for _ in range(count)], seed)

    return {count: [one(count, seed) for seed in range(schedules if count else 1)] for count in COUNTS}


def shares(found: Sequence[Goodput]) -> dict[str, float]:
    """Of the whole time of these trainings, by cause; they sum to 1."""
    total = sum(each.total_s for each in found)
    spent = {cause: sum(each.badput_s[cause] for each in found) / total for cause in found[0].badput_s}
    return {"productive": sum(each.productive_s for each in found) / total, **spent}


def table(found: Mapping[str, Mapping[int, Sequence[Goodput]]]) -> list[str]:
    lines = ["Goodput, mean (worst)           " + "".join(f"{count:>16}" for count in COUNTS) + "  pre-emptions"]
    for name, by_count in found.items():
        cells = (f"{fmean(g.share for g in each):.3f} ({min(g.share for g in each):.3f})" for each in by_count.values())
        lines.append(f"{name:32}" + "".join(f"{cell:>16}" for cell in cells))
    return lines


def where(found: Mapping[str, Mapping[int, Sequence[Goodput]]]) -> list[str]:
    most = COUNTS[-1]
    causes = list(shares(next(iter(found.values()))[most]))
    lines = [f"{f'Percent of the time, {most} times':32}" + "".join(f"{cause:>11}" for cause in (*causes, "sum"))]
    for name, by_count in found.items():
        spent = shares(by_count[most])
        cells = "".join(f"{100 * share:11.1f}" for share in (*spent.values(), sum(spent.values())))
        lines.append(f"{name:32}{cells}")
    return lines


def intervals(planned: Mapping[tuple[str, int], TimeInterval]) -> list[str]:
    lines = [
        f"{'Seconds between saves':32}{'nodes':>8}{'interrupted every':>20}{'simulated':>12}{'goodput':>10}"
        f"{'Young-Daly':>12}{'goodput':>10}"
    ]
    for (name, nodes), each in planned.items():
        every = f"{each.interruption_every_s:,.0f} s"
        lines.append(
            f"{name:32}{nodes:>8}{every:>20}{each.best_s:>12,.0f}{each.best_goodput:>10.3f}"
            f"{each.young_daly_s:>12,.0f}{each.young_daly_goodput:>10.3f}"
        )
    return lines


def summary(
    found: Mapping[str, Mapping[int, Sequence[Goodput]]], planned: Mapping[tuple[str, int], TimeInterval]
) -> dict[str, Any]:
    def of(which: Any) -> dict[str, dict[str, float]]:
        return {
            name: {str(count): round(which(g.share for g in each), 3) for count, each in by_count.items()}
            for name, by_count in found.items()
        }

    return {
        "goodput": of(fmean),
        "worst": of(min),
        "time_share": {
            name: {cause: round(share, 4) for cause, share in shares(by_count[COUNTS[-1]]).items()}
            for name, by_count in found.items()
        },
        "interval": {
            f"{name}, {nodes} nodes": {
                "simulated_s": round(each.best_s),
                "young_daly_s": round(each.young_daly_s),
                "goodput": round(each.best_goodput, 3),
            }
            for (name, nodes), each in planned.items()
        },
    }


if __name__ == "__main__":
    main()
