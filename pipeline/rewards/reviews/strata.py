"""Who is drawn for review: a random stratum, which stands for all labels, and edge cases, which stand for themselves.

The random stratum is the labelled rows of the lowest lots, and a lot is a digest of week, label table and ids: a
simple random sample without replacement, the same however often it is drawn. The table's digest depends on everybody's
rows, so whoever can choose a trace's id still cannot choose whether it is drawn. Edge cases come from the other rows,
by turns of their kinds: opinions far apart, a reward next to a threshold of preference pairs, a check that failed,
feedback in quarantine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from heapq import nsmallest
from itertools import zip_longest
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.recipe.rewards import Review
from pipeline.rewards.findings import key_of
from pipeline.rewards.trust import FAR_APART, OPINIONS, disagreement
from pipeline.traces.arrow import pc

COLUMNS = ("trace_id", "observation_id", *OPINIONS, "final_reward", "missing")
"""What a draw reads of the label table."""
NEAR = 0.05
"""Distance from a threshold within which a label is an edge case."""
QUARANTINED = "burst"


Stratum = Literal["random", "edge"]
Why = Callable[[int], str]


class SampledRow(NamedTuple):
    """One row that is asked about."""

    trace_id: str
    observation_id: str
    stratum: Stratum
    why: str


def draw(
    labels: pa.Table, settings: Review, week: str, salt: str, chosen_min: float = 0.7, rejected_max: float = 0.5
) -> list[SampledRow]:
    """The week's picks from a label table's COLUMNS, the random ones first. `salt`: digest of the table."""
    traces, observations = labels["trace_id"].to_pylist(), labels["observation_id"].to_pylist()
    lots = [key_of("draw", week, salt, *ids) for ids in zip(traces, observations, strict=True)]

    def picked(row: int, stratum: Stratum, why: str) -> SampledRow:
        return SampledRow(traces[row], observations[row], stratum, why)

    labelled = np.flatnonzero(pc.is_valid(labels["final_reward"]).to_numpy())
    wanted = min(settings.max_random, math.ceil(settings.share * len(labelled) - 1e-9))
    random = dict.fromkeys(nsmallest(wanted, labelled.tolist(), key=lots.__getitem__))
    kinds = list(_kinds(labels, chosen_min, rejected_max))
    enough = settings.max_edge_cases + len(random)
    queues = [[(row, why) for row in nsmallest(enough, rows, key=lots.__getitem__)] for rows, why in kinds]
    turns = (each for turn in zip_longest(*queues) for each in turn if each is not None and each[0] not in random)
    edge: dict[int, Why] = {}
    for row, why in turns:
        if len(edge) < settings.max_edge_cases:
            edge.setdefault(row, why)
    return [
        *(picked(row, "random", "drawn at random") for row in random),
        *(picked(row, "edge", why(row)) for row, why in edge.items()),
    ]


def _kinds(labels: pa.Table, chosen_min: float, rejected_max: float) -> Iterator[tuple[list[int], Why]]:
    """The rows of each kind of edge case, and what makes one of them one."""
    opinions = {name: labels[name].to_numpy() for name in OPINIONS}
    rewards = labels["final_reward"].to_numpy()
    missing = pc.fill_null(labels["missing"], "{}").combine_chunks().dictionary_encode()
    silent = [json.loads(text) for text in missing.dictionary.to_pylist()]
    combination = missing.indices.to_numpy()

    def with_reason(wanted: Callable[[dict[str, str]], bool]) -> list[int]:
        return np.flatnonzero(np.array([wanted(reasons) for reasons in silent], bool)[combination]).tolist()

    def apart(row: int) -> str:
        scores = {name: values[row] for name, values in opinions.items() if not math.isnan(values[row])}
        low, high = min(scores, key=scores.__getitem__), max(scores, key=scores.__getitem__)
        return f"{high} says {scores[high]:.2f}, {low} says {scores[low]:.2f}"

    yield np.flatnonzero(disagreement(labels) >= FAR_APART).tolist(), apart
    for threshold in (chosen_min, rejected_max):
        close = np.flatnonzero(np.abs(rewards - threshold) <= NEAR).tolist()
        yield close, lambda row, threshold=threshold: f"reward {rewards[row]:.2f} is next to {threshold:.2f}"
    failed = with_reason(lambda reasons: "correct" in reasons)
    yield failed, lambda row: f"the check failed: {silent[combination[row]]['correct']}"
    quarantined = with_reason(lambda reasons: reasons.get("feedback") == QUARANTINED)
    yield quarantined, lambda row: "feedback in quarantine"
