"""A year of nights whose candidates are known: `python -m benchmarks.nights [--small]`. Each night is a gate over
the same items with fresh answers of both arms, at the level and on the nights of the loop's own rules (evals/luck.py,
evals/outlook.py). The last line is JSON."""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from scipy.special import ndtr

from benchmarks.nights_calendar import calendar
from benchmarks.parts import options
from benchmarks.rollout_machine import rollouts
from evals import luck, statistics
from evals.gate import Verdict
from evals.outlook import MOST_NIGHTS, nights_worth
from evals.statistics import Array, normal_quantile
from jobs.status import read_deployment
from tests.assets.laid import Laid
from tests.pipeline.rollout.conftest import NAME

SHARES = (0.02, 0.05, 0.1, 0.3, 0.6)
"""Of the candidates that are truly better."""
RATE = 0.05
ITEMS, SAMPLES, SPREAD, CHANGE = 400, 2, 0.3, 0.15
"""The suite; items differ in their difficulty by SPREAD, and in what a training does to them by CHANGE."""
ERROR = float(np.sqrt((CHANGE**2 + 2 * (0.25 - SPREAD**2 / 3) / SAMPLES) / ITEMS))
"""Standard error of a gate's difference."""


class Years(NamedTuple):
    """What became of some years."""

    false: Array
    """Promotions of candidates that are no better, by year."""
    promoted: Array
    first: float
    """Power at the first gate, and at those about the 300th night."""
    late: float
    collecting: float
    """Nights of a year, and the longest run of them."""
    longest: int
    refused: int
    """Gates that could pass nobody."""


def years(count: int, share: float, z: float, nights: int, seed: int) -> Years:
    """Years in which `share` of the candidates of one night's traces are better by `z` standard errors, those of n
    nights by sqrt(n) times as much, and the others are no better."""
    rng = np.random.default_rng(seed)
    false, promoted, collected = np.zeros(count), np.zeros(count), np.zeros(count)
    powers: list[tuple[int, float]] = []
    longest = refused = 0
    for year in range(count):
        rates = 0.5 + rng.uniform(-SPREAD, SPREAD, ITEMS)  # of the champion's right answers, by item
        passed: list[int] = []
        gate = run = 0
        for night in range(nights):
            level = luck.level(RATE, gate + 1, passed)
            refused += level <= 0
            waits = nights_worth(level, ERROR, z * ERROR) if gate else 1
            if run + 1 < waits:
                run, collected[year] = run + 1, collected[year] + 1
                longest = max(longest, run)
                continue
            is_better, gain = rng.random() < share, z * ERROR * np.sqrt(run + 1)
            gate, run = gate + 1, 0
            powers.append((night, float(ndtr(gain / ERROR - normal_quantile(1 - level)))))
            change = rng.normal(0, CHANGE, ITEMS)
            if _shows(rates, rates + change + gain * is_better, level, rng):
                passed.append(gate)
                promoted[year] += 1
                false[year] += not is_better
                rates = 0.5 + rng.uniform(-SPREAD, SPREAD, ITEMS)  # users ask harder things of a better model
    late = [power for night, power in powers if night >= nights - nights // 5]
    return Years(false, promoted, powers[0][1], float(np.mean(late)), float(collected.mean()), longest, refused)


def _shows(champion: Array, candidate: Array, level: float, rng: np.random.Generator) -> bool:
    """Whether a gate shows an improvement, by t and, where that is close, by the bootstrap."""
    one, other = (rng.binomial(SAMPLES, np.clip(rates, 0, 1)).astype(np.float64) for rates in (champion, candidate))
    sums, sizes = (other - one)[None], np.full(ITEMS, float(SAMPLES))
    mean, error = statistics.mean_and_standard_error(sums, sizes)
    lower = float((mean - statistics.reach(mean, error, ITEMS, level)[0])[0])
    if 0 < lower < 0.1 * float(error[0]):
        return statistics.paired(sums, sizes, level, 0)[0].bootstrap_lower > 0
    return lower > 0


def gates(small: bool) -> dict[str, Any]:
    """Luck, power and waiting, at 3 and 4.5 standard errors."""
    count, nights = (2, 40) if small else (100, luck.PERIOD)
    found = {(share, z): years(count, share, z, nights, 7) for share in SHARES for z in (3.0, 4.5)}
    none = years(4 * count, 0.0, 3.0, nights, 8)
    for (share, z), each in found.items():
        print(
            f"{share:>4.0%} better by {z} standard errors: {each.promoted.mean():5.1f} promotions a year, "
            f"{each.false.mean():.2f} of no better; power {each.first:.2f} at the first gate, {each.late:.2f} at the "
            f"end; {each.collecting:.0f} nights collect, {each.longest} at most in a row",
            flush=True,
        )
    tenth = found[0.1, 3.0]
    return {
        "false_discovery_rate": {
            str(share): round(_false(found[share, 3.0], found[share, 4.5]), 3) for share in SHARES
        },
        "lucky_year": round(float((none.promoted > 0).mean()), 3),
        "power_at_gate_1": round(tenth.first, 3),
        "power_at_gate_300": round(tenth.late, 3),
        "nights_refused": sum(each.refused for each in (*found.values(), none)),
        "nights_collecting": round(tenth.collecting, 1),
        "longest_collecting": max(each.longest for each in (*found.values(), none)),
    }


def _false(*runs: Years) -> float:
    """Mean share of a year's promotions that are no better, the larger of these."""
    return max(float((each.false / np.maximum(each.promoted, 1)).mean()) for each in runs)


def status_s(iterations: int) -> float:
    """CPU seconds of what `pt status` reads of so many iterations."""
    with tempfile.TemporaryDirectory() as folder:
        laid = Laid(Path(folder))
        for number in range(iterations):
            laid.end(laid.until_verdict(f"digest-{number}", Verdict.FAIL, f"data-{number}"), "refused")
        with patch.dict(os.environ, {"PREFERENCE_TUNING_OVERRIDES": f"data_root={folder} base_model.name={NAME}"}):
            begun = time.process_time()
            read_deployment(time.time())
            return time.process_time() - begun


def main() -> None:
    small = options(__doc__, "a few years of 40 nights, two rollouts, five nights of the calendar").parse_args().small
    figures = gates(small)
    assert figures["longest_collecting"] < MOST_NIGHTS
    figures |= rollouts(2 if small else 100, small) | {"pt_status_s": round(status_s(9 if small else luck.PERIOD), 2)}
    print(json.dumps(figures | calendar(6 if small else 60)))  # last: it moves this process's clock


if __name__ == "__main__":
    main()
