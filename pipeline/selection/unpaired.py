"""What teaches without pairs: thumbs, which are logged answers that people clearly liked or did not, or that an import
rates on a clear side; winners, the best of a prompt's fresh samples (best of k, arXiv 2304.06767); and whether the
scorers of samples agree."""

from collections.abc import Mapping, Sequence
from itertools import permutations
from statistics import fmean, pvariance

from pipeline.core.estimate import UNKNOWN, Estimate, mean
from pipeline.core.storage import Record
from pipeline.recipe import Selection
from pipeline.recipe.rewards import Weights
from pipeline.recipe.sources import DEMONSTRATED, IMPORTED
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.selection.pairing import LabelledRow
from pipeline.traces.pii import is_masked

CLEAR = 0.2
"""Distance of a settled value of feedback from one half that makes a thumb: one clear word, not contradicted."""


def thumbs(groups: Mapping[str, Sequence[LabelledRow]], settings: Selection) -> list[LabelledRow]:
    """The thumbs: rated rows, but for those that are unclear, without text, or with masked personal data."""
    rated = [(row, value) for group in groups.values() for row in group if (value := _rating(row)) is not None]
    return [
        row
        for row, value in rated
        if _is_clear(row, value, settings) and row.completion.strip() and not is_masked(row.completion)
    ]


def is_liked(thumb: LabelledRow) -> bool:
    return (_rating(thumb) or 0.0) > 0.5


def _rating(row: LabelledRow) -> float | None:
    """Demonstrations have none: all of them are good, so thumbs would tell them from other rows."""
    return row.final_reward if row.profile == IMPORTED else row.feedback


def _is_clear(row: LabelledRow, value: float, settings: Selection) -> bool:
    if row.profile == IMPORTED:  # on the sides of a pair's rewards
        return value >= settings.chosen_min or value < settings.rejected_max
    return abs(value - 0.5) >= CLEAR - 1e-9


def demonstrations(groups: Mapping[str, Sequence[LabelledRow]]) -> list[LabelledRow]:
    """The demonstrations, each wording of a prompt's answer once."""
    rows = [row for group in groups.values() for row in group if row.profile == DEMONSTRATED and row.final_reward]
    once = {(row.prompt, " ".join(row.completion.split())): row for row in rows if not is_masked(row.completion)}
    return list(once.values())


def winners(groups: Mapping[str, Sequence[LabelledRow]]) -> list[LabelledRow]:
    """The winner of each prompt whose samples differ in score; of equal scores the shorter answer, then by its text."""
    best: list[LabelledRow] = []
    for group in groups.values():
        may_win = [r for r in group if r.fresh and r.finished and r.completion.strip() and not is_masked(r.completion)]
        scored = [(row.final_reward, row) for row in may_win if row.final_reward is not None]
        if len({score for score, _ in scored}) > 1:
            best.append(min(scored, key=lambda each: (-each[0], len(each[1].completion), each[1].completion))[1])
    return best


def in_order_of_spread(groups: Mapping[str, Sequence[LabelledRow]]) -> dict[str, Sequence[LabelledRow]]:
    """Groups without a reference whose fresh samples differ in score, the largest variance first: GRPO can be forced
    on them."""
    spread: dict[str, float] = {}
    for prompt, group in groups.items():
        scores = [row.final_reward for row in group if row.fresh and row.final_reward is not None]
        if len(set(scores)) > 1 and not any(row.reference for row in group):
            spread[prompt] = pvariance(scores)
    return {prompt: groups[prompt] for prompt in sorted(spread, key=lambda prompt: (-spread[prompt], prompt))}


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

    def order_thumbs(self, settings: Selection) -> bool:
        """Whether the thumbs hold a signal."""
        return self.feedback_auc.low is not None and self.feedback_auc.low >= settings.min_feedback_auc

    def agree(self, settings: Selection) -> bool:
        """Whether the best of k is one: a lone scorer is taken at its admission."""
        return len(self.names) == 1 or (self.gain.low is not None and self.gain.low >= settings.min_best_gain)


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
