"""Label noise of preference pairs: the expected share that is the wrong way round (docs/selection.md).
A pair errs by the mean of its two labels' errors; each source of labels is audited against the verifier or people."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from pipeline.core.estimate import UNKNOWN, Estimate, share
from pipeline.core.storage import Record
from pipeline.recipe import Selection
from pipeline.rewards.records import RewardLabels
from pipeline.selection import pairing
from pipeline.selection.pairing import LabelledRow, Pair

ENOUGH_REVIEWS = 100
"""Fewer leave an interval of 0.1 and more at any noise that DPO bears."""
ASSUMED_RIGHT = Estimate(value=0.0, low=0.0, high=0.0, n=0)

_SOURCE = {"verified": "verifier", "rated": "feedback", "judged": "judge"}


class Trust(Record):
    judge_order: Estimate = UNKNOWN
    """Share of pairs on which the judge contradicts itself when their order is swapped."""
    verifier_judge: Estimate = UNKNOWN
    """Share of rows on which verifier and judge disagree. Shown, not used: it is of rows, not of pairs."""
    human: Estimate = UNKNOWN
    """Share of reviewed labels on whose side people disagree."""


class NoiseSource(Record):
    share: float
    """Of the sides of all pairs, in [0, 1]."""
    noise: Estimate
    """Expected share of pairs the wrong way round, if they rested on this source alone."""
    known_from: str


def trust_in(labels: RewardLabels) -> Trust:
    if labels.judge is None:
        return Trust(human=labels.humans.noise)
    agree = next(
        (each.agree for each in labels.agreement if {each.first, each.second} == {"correct", "judge"}), UNKNOWN
    )
    disagree = agree
    if agree.value is not None and agree.low is not None and agree.high is not None:
        disagree = Estimate(value=1 - agree.value, low=1 - agree.high, high=1 - agree.low, n=agree.n)
    return Trust(human=labels.humans.noise, judge_order=labels.judge.order, verifier_judge=disagree)


def noise_sources(
    groups: Sequence[Sequence[LabelledRow]], pairs: Sequence[Pair], trust: Trust, settings: Selection
) -> dict[str, NoiseSource]:
    """By kind of label; empty without pairs. `groups`: the labelled completions of each prompt that has several."""
    if not pairs:
        return {}
    if trust.human.n >= ENOUGH_REVIEWS:
        # People review labels: at worst each wrong label among the comparable ones sits on a side of a pair.
        sides_each = max(1.0, sum(map(len, groups)) / (2 * len(pairs)))
        noise = trust.human.model_copy(update={"high": min(1.0, (trust.human.high or 0.0) * sides_each)})
        return {"people": NoiseSource(share=1.0, noise=noise, known_from=f"{trust.human.n:,} labels reviewed")}
    sides = Counter(_SOURCE.get(row.profile, "judge") for pair in pairs for row in (pair.chosen, pair.rejected))
    sources: dict[str, NoiseSource] = {}
    for source, number in sorted(sides.items()):
        noise, known_from = ASSUMED_RIGHT, "nobody has reviewed enough labels"
        if source == "feedback":
            noise = _audit(groups, lambda row: row.feedback, settings)
            known_from = f"the verifier on {noise.n:,} prompts that users rated"
        elif source == "judge":
            noise = _at_least(_audit(groups, lambda row: row.judge, settings), trust.judge_order)
            known_from = f"the verifier on {noise.n:,} prompts that the judge scored"
            known_from += f", {trust.judge_order.n:,} pairs in both orders" if trust.judge_order.n else ""
        sources[source] = NoiseSource(share=number / (2 * len(pairs)), noise=noise, known_from=known_from)
    return sources


def label_noise(sources: Mapping[str, NoiseSource]) -> Estimate:
    """Mean over the sources by their share, its interval by MOVER (Zou and Donner 2008). A source of unknown noise
    counts as anything from 0 to 1; where it carries more than half of the sides, the whole is unknown."""
    known = [(s.share, s.noise.value, s.noise.low, s.noise.high) for s in sources.values()]
    n = sum(s.noise.n for s in sources.values())
    unknown = sum(weight for weight, value, _, _ in known if value is None)
    if not sources or unknown > 0.5:
        return Estimate(value=None, low=None, high=None, n=n)
    value = below = above = 0.0
    for weight, middle, low, high in known:
        if middle is not None and low is not None and high is not None:
            value += weight * middle
            below += (weight * (middle - low)) ** 2
            above += (weight * (high - middle)) ** 2
    return Estimate(
        value=value + unknown / 2,
        low=max(0.0, value - math.sqrt(below)),
        high=min(1.0, value + math.sqrt(above) + unknown),
        n=n,
    )


def _audit(
    groups: Sequence[Sequence[LabelledRow]], score: Callable[[LabelledRow], float | None], settings: Selection
) -> Estimate:
    """Noise of the pairs that a source's labels of verified completions make; one observation a prompt."""
    wrong: list[float] = []
    for group in groups:
        rescored = [row._replace(final_reward=score(row), profile="audit") for row in group if row.correct is not None]
        audit_pairs = pairing.pairs({"": rescored}, settings)
        if audit_pairs:
            wrong.append(fmean((1 + (p.rejected.correct or 0.0) - (p.chosen.correct or 0.0)) / 2 for p in audit_pairs))
    return share(sum(wrong), len(wrong))


def _at_least(noise: Estimate, order: Estimate) -> Estimate:
    if noise.value is None or noise.low is None or noise.high is None:
        return noise
    value, low, high = ((bound or 0.0) / 2 for bound in (order.value, order.low, order.high))
    return Estimate(value=max(noise.value, value), low=max(noise.low, low), high=max(noise.high, high), n=noise.n)
