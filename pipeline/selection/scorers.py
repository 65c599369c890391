"""Whether the scorers of fresh samples agree: the best of k by one has to be better to another."""

from collections.abc import Mapping, Sequence
from itertools import permutations
from statistics import fmean

from pipeline.core.estimate import UNKNOWN, Estimate, mean
from pipeline.core.storage import Record
from pipeline.recipe.rewards import Weights
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.selection.pairing import LabelledRow

SCORERS = ("reward_model", "judge", "custom")
"""Components that score a whole completion; columns of LabelledRow."""


class ScorerEvidence(Record):
    names: tuple[str, ...] = ()
    """The components that count in the samples' rewards."""
    gain: Estimate = UNKNOWN
    """Mean over prompts of what the best of k by one scorer is worth to another over the mean of all k, in [-1, 1]: of
    all pairs of scorers, the one with the lowest lower bound. Unknown with fewer than two."""
    feedback_auc: Estimate = UNKNOWN
    """Of the reward model, against the thumbs of users that it never saw."""
    failed_probes: tuple[str, ...] = ()
    """Of the reward model; another scorer has to see these faults."""


def measure_scorers(
    groups: Mapping[str, Sequence[LabelledRow]], weights: Weights, reward_model: RewardModelReport | None
) -> ScorerEvidence:
    """`weights`: of the recipe's `rewards.fresh`."""
    drawn = [[row for row in group if row.fresh and row.finished] for group in groups.values()]
    counting = {name for name in SCORERS if getattr(weights, name) > 0}
    if reward_model is None or not reward_model.counts_beside(weights):
        counting.discard("reward_model")
    rows = [row for completions in drawn for row in completions]
    names = tuple(name for name in SCORERS if name in counting and any(_value(row, name) is not None for row in rows))
    gains = [best_of_k(drawn, chooser, judge) for chooser, judge in permutations(names, 2)]
    return ScorerEvidence(
        names=names,
        gain=min(gains, key=lambda gain: -1.0 if gain.low is None else gain.low, default=UNKNOWN),
        feedback_auc=UNKNOWN if reward_model is None else reward_model.auc,
        failed_probes=() if reward_model is None else reward_model.failed_probes,
    )


def best_of_k(drawn: Sequence[Sequence[LabelledRow]], chooser: str, judge: str) -> Estimate:
    """What `chooser`'s best of each prompt's completions is worth to `judge`, over the mean of them all."""
    gains: list[float] = []
    for rows in drawn:
        values = [(_value(row, chooser), _value(row, judge)) for row in rows]
        scored = [(a, b) for a, b in values if a is not None and b is not None]
        if len(scored) > 1:
            best = max(first for first, _ in scored)
            gains.append(fmean(b for a, b in scored if a == best) - fmean(b for _, b in scored))
    return mean(gains)


def _value(row: LabelledRow, name: str) -> float | None:
    value: float | None = getattr(row, name)
    return value
