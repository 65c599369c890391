"""Candidate against champion, item by item: how counts become differences with their uncertainty.

The records are measurements.py's. Refuses to judge them (gate.py) or to draw them (report.py).
A sample whose check failed or timed out is nobody's point: it counts against the candidate, in either arm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Literal

import numpy as np

from evals import statistics
from evals.answer_costs import compare_cost, compare_times
from evals.measurements import Comparison, ConfidenceInterval, Difference, Guard, PassAt, Slice
from evals.results import EvalArm, ItemCounts
from evals.statistics import Array, Paired
from evals.suites import Item, Suite
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import SuiteSection

PII_MARGIN = 0.005
"""Share of answers with personal data that the prompt does not hold: beyond it, a candidate that adds it fails."""

PARTIAL: dict[str, Callable[[ItemCounts], int | None]] = {
    "format": lambda c: c.malformed,
    "language": lambda c: c.drifted,
}
"""Defects that an answer to some items alone can have; None for the others."""

Counter = Callable[[ItemCounts, bool], float]
"""How often something happened to an item; the second argument says whether an ungraded sample counts."""
SHARES: dict[str, Counter] = {
    "no_answer": lambda c, ungraded: c.no_answer + ungraded * c.ungraded,
    "truncated": lambda c, ungraded: c.truncated,
    "refusal": lambda c, ungraded: c.refusal,
    "pii": lambda c, ungraded: c.pii,
}
"""Defects that a candidate may not add, as counts of an item's samples."""


def paired_gains(items: Sequence[Item], arms: tuple[EvalArm, EvalArm]) -> tuple[Array, Array]:
    """The target's test as numbers: (C,) candidate minus champion in right samples, and (C,) samples, by cluster."""
    before, after = (_counts(arm, items) for arm in arms)
    clusters = [item.cluster for item in items]
    gains = _numbers(after, _right, False) - _numbers(before, _right, True)
    sizes = np.array([each.samples for each in before], dtype=np.float64)
    return statistics.cluster_sums(gains, clusters), statistics.cluster_sums(sizes, clusters)


def compare(
    suite: Suite,
    arms: tuple[EvalArm, EvalArm],
    section: Evaluation,
    settings: SuiteSection,
    best: EvalArm | None = None,
    alpha: float | None = None,
) -> Comparison:
    """Compare two complete runs, champion first, over the same items (comparable.problems says whether they are), and
    the candidate with the `best` ever. `alpha`: level of the improvement, where it is not the recipe's.

    Results are matched by id and counts are whole, so no number depends on the order in which they arrived.
    """
    items = suite.items
    clusters = [item.cluster for item in items]
    alpha = section.improvement_alpha() if alpha is None else alpha
    before, after = (_counts(arm, items) for arm in arms)
    k = before[0].samples
    sizes = statistics.cluster_sums(np.full(len(items), float(k)), clusters)
    scores = _numbers(before, _right, True), _numbers(after, _right, False)
    gains = scores[1] - scores[0]
    sums = statistics.cluster_sums(gains[None], clusters)
    return Comparison(
        items=len(items),
        clusters=len(sizes),
        samples_per_item=k,
        champion=_interval(scores[0], sizes, clusters),
        candidate=_interval(scores[1], sizes, clusters),
        difference=difference(statistics.paired(sums, sizes, alpha, section.seed), 0),
        mcnemar_p=statistics.mcnemar(int((gains > 0).sum()), int((gains < 0).sum())) if sizes.max() == 1 else None,
        guards=_guards(before, after, _counts(best, items) if best else None, suite, section, settings),
        slices=_slices(items, *scores, k),
        pass_at=tuple(
            PassAt(k=n, champion=_pass_at(before, n), candidate=_pass_at(after, n)) for n in settings.pass_at if n <= k
        ),
        ungraded_champion=sum(each.ungraded for each in before),
        ungraded_candidate=sum(each.ungraded for each in after),
        cost=compare_cost(before, after, clusters, section.price, section.seed),
        token_times=compare_times(before, after, clusters, section.seed),
    )


def difference(estimates: Paired, row: int) -> Difference:
    """One experiment of `estimates` as a record."""
    return Difference(**{f.name: float(getattr(estimates, f.name)[row]) for f in fields(Paired)})


def _guards(
    before: list[ItemCounts],
    after: list[ItemCounts],
    best: list[ItemCounts] | None,
    suite: Suite,
    section: Evaluation,
    settings: SuiteSection,
) -> tuple[Guard, ...]:
    """The defects, the length and, of a suite that guards, the loss of its score; one family of draws for all but those
    that some items alone have."""
    clusters = [item.cluster for item in suite.items]
    k = float(before[0].samples)
    sizes = statistics.cluster_sums(np.full(len(clusters), k), clusters)
    pairs = {name: (_numbers(before, count, False), _numbers(after, count, True)) for name, count in SHARES.items()}
    margins = dict.fromkeys(SHARES, section.guard_margin) | {"pii": PII_MARGIN}
    if settings.role == "guard" or section.improve != "all":
        pairs["score"] = k - _numbers(before, _right, True), k - _numbers(after, _right, False)
        margins["score"] = settings.margin
    if best is not None:
        pairs["best_ever"] = k - _numbers(best, _right, True), k - _numbers(after, _right, False)
        margins["best_ever"] = settings.margin
    sums = statistics.cluster_sums(np.stack([after - before for before, after in pairs.values()]), clusters)
    estimates = statistics.paired(sums, sizes, section.alpha, section.seed)
    total = float(sizes.sum())
    guards = [
        Guard(
            name=name,
            rule="harm" if name == "pii" else "safe",
            champion=float(one.sum()) / total,
            candidate=float(other.sum()) / total,
            margin=margins[name],
            difference=difference(estimates, row),
        )
        for row, (name, (one, other)) in enumerate(pairs.items())
    ]
    for name, count in PARTIAL.items():
        rule = "report" if name == "language" and len(suite.languages) < 2 else "safe"
        guards += _partial(name, rule, (before, after), count, clusters, section)
    tokens = [_numbers(arm, lambda counts, _: counts.tokens, False) for arm in (before, after)]
    one, other = (statistics.cluster_sums(each, clusters) for each in tokens)
    alpha = section.gate_alpha() if section.improve == "cost" else section.alpha  # then it is what must improve
    length = statistics.log_ratio(one, other, alpha, section.seed)
    champion, candidate = (float(each.sum()) / total for each in tokens)
    return (
        *guards,
        Guard(
            name="length",
            rule="safe",
            champion=champion,
            candidate=candidate,
            margin=math.log1p(section.longer_by),
            difference=difference(length, 0),
        ),
    )


def _partial(
    name: str,
    rule: Literal["safe", "report"],
    arms: tuple[list[ItemCounts], list[ItemCounts]],
    count: Callable[[ItemCounts], int | None],
    clusters: list[str],
    section: Evaluation,
) -> Iterator[Guard]:
    """The guard over the items that can have the defect, where they are in two clusters: one has no spread."""
    known = [
        (cluster, float(one.samples), count(one) or 0, count(other) or 0)
        for cluster, one, other in zip(clusters, *arms, strict=True)
        if count(one) is not None or count(other) is not None
    ]
    within = [cluster for cluster, *_ in known]
    if len(set(within)) < 2:
        return
    samples, before, after = (np.array(column, dtype=np.float64) for column in list(zip(*known, strict=True))[1:])
    sizes = statistics.cluster_sums(samples, within)
    sums = statistics.cluster_sums((after - before)[None], within)
    yield Guard(
        name=name,
        rule=rule,
        champion=float(before.sum() / samples.sum()),
        candidate=float(after.sum() / samples.sum()),
        margin=section.guard_margin,
        difference=difference(statistics.paired(sums, sizes, section.alpha, section.seed), 0),
    )


def _right(counts: ItemCounts, ungraded: bool) -> float:
    return counts.right + ungraded * counts.ungraded


def _counts(arm: EvalArm, items: Sequence[Item]) -> list[ItemCounts]:
    by_id = {result.id: result for result in arm.results}
    return [by_id[item.id].counts() for item in items]


def _numbers(counts: list[ItemCounts], counter: Counter, ungraded: bool) -> Array:
    return np.array([counter(each, ungraded) for each in counts], dtype=np.float64)


def _pass_at(counts: list[ItemCounts], k: int) -> float:
    chances = [1 - math.comb(each.samples - each.right, k) / math.comb(each.samples, k) for each in counts]
    return math.fsum(chances) / len(chances)


def _interval(scores: Array, sizes: Array, clusters: list[str]) -> ConfidenceInterval:
    value, low, high = statistics.accuracy_interval(statistics.cluster_sums(scores, clusters), sizes)
    return ConfidenceInterval(value=value, low=low, high=high)


def _slices(items: Sequence[Item], before: Array, after: Array, k: int) -> tuple[Slice, ...]:
    slices: list[Slice] = []
    for name in sorted({item.slice for item in items}):
        mask = np.array([item.slice == name for item in items])
        clusters = [item.cluster for item in items if item.slice == name]
        total = float(mask.sum() * k)
        gain, p = _slice_gain((after - before)[mask], clusters, k)
        slices.append(
            Slice(
                name=name,
                items=int(mask.sum()),
                champion=float(before[mask].sum()) / total,
                candidate=float(after[mask].sum()) / total,
                difference=gain,
                p_holm=p,
            )
        )
    adjusted = statistics.holm([row.p_holm for row in slices])
    return tuple(row.model_copy(update={"p_holm": p}) for row, p in zip(slices, adjusted, strict=True))


def _slice_gain(gains: Array, clusters: list[str], k: int) -> tuple[ConfidenceInterval, float]:
    sizes = statistics.cluster_sums(np.full(len(clusters), float(k)), clusters)
    sums = statistics.cluster_sums(gains, clusters)
    dof = len(sizes) - 1
    if dof < 1:  # one cluster says nothing about the next one
        return ConfidenceInterval(value=float(sums.sum() / sizes.sum()), low=-1.0, high=1.0), 1.0
    mean, error = statistics.mean_and_standard_error(sums, sizes)
    below, above = statistics.reach(mean, error, len(sizes), (1 - statistics.LEVEL) / 2)
    interval = ConfidenceInterval(value=float(mean), low=float(mean - below), high=float(mean + above))
    return interval, statistics.t_p_value(float(mean), float(error), dof)
