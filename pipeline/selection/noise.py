"""Label noise of preference pairs: the expected share that is the wrong way round.

A wrong label costs a pair half its direction: with one of its two labels wrong, both completions are in truth equally
good and the order is a coin's; with both, it is reversed. So a pair errs by the mean of its two labels' errors, however
these depend on each other, and a set of pairs by the mean over its sides. What is known of each side's label:

- **verifier**: taken as right until people have reviewed; the record says that this is assumed.
- **feedback**, **judge**: audited on verified prompts. What they said is paired there as rewards are (`pairing.py`),
  and the verifier says which pairs are reversed (1) or equal (1/2). Disagreement on single rows will not do: where a
  prompt is always answered right, every pair is made of wrong labels, however few those are. Assumes that unverified
  prompts are like verified ones, and that a rated label is what users said. A judge errs on at least half of the pairs
  on which it contradicts itself when their order is swapped.
- **people**, once they have reviewed enough: in place of all of the above. They review labels, not pairs, so the upper
  bound supposes that every wrong label sits in a pair.
"""

from __future__ import annotations

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
    """What the reward stage knows about the noise of its labels."""

    judge_order: Estimate = UNKNOWN
    """Share of pairs on which the judge contradicts itself when their order is swapped."""
    verifier_judge: Estimate = UNKNOWN
    """Share of rows on which verifier and judge disagree. Told, not used: it is of rows (see above)."""
    human: Estimate = UNKNOWN
    """Share of reviewed labels on whose side people disagree."""


class NoiseSource(Record):
    """What one sort of label adds to the noise of the pairs."""

    share: float
    """Of the sides of all pairs, in [0, 1]."""
    noise: Estimate
    """Expected share of pairs the wrong way round, if they rested on this source alone."""
    known_from: str


def trust_in(labels: RewardLabels) -> Trust:
    """What the reward stage knows of the noise in its labels."""
    if labels.judge is None:
        return Trust(human=labels.humans.noise)
    disagree = [_complement(a.agree) for a in labels.agreement if {a.first, a.second} == {"correct", "judge"}]
    return Trust(
        human=labels.humans.noise, judge_order=labels.judge.order, verifier_judge=disagree[0] if disagree else UNKNOWN
    )


def noise_sources(
    groups: Sequence[Sequence[LabelledRow]], pairs: Sequence[Pair], trust: Trust, settings: Selection
) -> dict[str, NoiseSource]:
    """What the pairs' labels rest on, and how far that can be trusted. Empty without pairs.

    `groups`: the labelled completions of each prompt that has several.
    """
    if not pairs:
        return {}
    if trust.human.n >= ENOUGH_REVIEWS:
        noise = _of_pairs(trust.human, sum(map(len, groups)), 2 * len(pairs))
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
    """Mean over the sources by their share, its interval by MOVER (Zou and Donner 2008).

    A source of which nothing is known counts as anything from 0 to 1; where it carries more than half of the sides,
    the whole is unknown. `n`: audited prompts and reviews.
    """
    known = [(s.share, s.noise.value, s.noise.low, s.noise.high) for s in sources.values()]
    n = sum(s.noise.n for s in sources.values())
    in_the_dark = sum(weight for weight, value, _, _ in known if value is None)
    if not sources or in_the_dark > 0.5:
        return Estimate(value=None, low=None, high=None, n=n)
    value = below = above = 0.0
    for weight, middle, low, high in known:
        if middle is not None and low is not None and high is not None:
            value += weight * middle
            below += (weight * (middle - low)) ** 2
            above += (weight * (high - middle)) ** 2
    return Estimate(
        value=value + in_the_dark / 2,
        low=max(0.0, value - math.sqrt(below)),
        high=min(1.0, value + math.sqrt(above) + in_the_dark),
        n=n,
    )


def _audit(
    groups: Sequence[Sequence[LabelledRow]], score: Callable[[LabelledRow], float | None], settings: Selection
) -> Estimate:
    """Pairs made by what a source said of verified completions, held against the verifier. One observation a prompt."""
    wrong: list[float] = []
    for group in groups:
        rescored = [row._replace(final_reward=score(row), profile="audit") for row in group if row.correct is not None]
        audit_pairs = pairing.pairs({"": rescored}, settings)
        if audit_pairs:
            wrong.append(fmean((1 + (p.rejected.correct or 0.0) - (p.chosen.correct or 0.0)) / 2 for p in audit_pairs))
    return share(sum(wrong), len(wrong))


def _at_least(noise: Estimate, order: Estimate) -> Estimate:
    if noise.value is None or noise.low is None or noise.high is None:
        return noise  # a judge that never contradicts itself may still be wrong
    value, low, high = ((bound or 0.0) / 2 for bound in (order.value, order.low, order.high))
    return Estimate(value=max(noise.value, value), low=max(noise.low, low), high=max(noise.high, high), n=noise.n)


def _of_pairs(labels: Estimate, comparable: int, sides: int) -> Estimate:
    """Of pairs, from that of labels: at worst each wrong label among the comparable ones sits on a side of a pair."""
    assert labels.value is not None and labels.high is not None, "reviewed, so known"
    high = min(1.0, labels.high * max(1.0, comparable / sides))
    return labels.model_copy(update={"high": high})


def _complement(share: Estimate) -> Estimate:
    if share.value is None or share.low is None or share.high is None:
        return share
    return Estimate(value=1 - share.value, low=1 - share.high, high=1 - share.low, n=share.n)
