"""Judged pairs with known truth: how often the candidate is truly preferred, how long it is, what the judge likes."""

from __future__ import annotations

import numpy as np

from evals.win_rate import JudgedPair


def simulated_pairs(
    seed: int, count: int, win: float, longer: float, habit: float, cluster: int = 1
) -> list[JudgedPair]:
    """`win`: chance that the candidate is preferred at equal lengths. `longer`: ratio of the median lengths. `habit`:
    what the judge's logit gains with tanh(d / sd(d)). About one pair in five is judged differently when swapped;
    `cluster` pairs in a row share a cluster."""
    rng = np.random.default_rng(seed)
    champion = np.exp(rng.normal(np.log(200), 0.4, count))
    candidate = longer * champion * np.exp(rng.normal(0, 0.4, count))
    lengths = np.round(candidate) - np.round(champion)
    chance = 1 / (1 + np.exp(-(np.log(win / (1 - win)) + habit * np.tanh(lengths / lengths.std(ddof=1)))))
    first = rng.random(count)
    second = np.where(rng.random(count) < 0.4, rng.random(count), first)
    return [
        JudgedPair(
            item=f"item-{i:04d}",
            cluster=f"cluster-{i // cluster:04d}",
            candidate_first=float(first[i] < chance[i]),
            champion_first=float(second[i] < chance[i]),
            champion_length=round(champion[i]),
            candidate_length=round(candidate[i]),
        )
        for i in range(count)
    ]
