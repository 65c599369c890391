"""What was measured: candidate against champion, item by item, as numbers with their uncertainty.

Owns the records and how counts become differences. Refuses to judge them (gate.py) or to draw them (report.py).
A sample whose check failed or timed out is nobody's point: it counts against the candidate, in either arm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Literal

import numpy as np
from pydantic import Field

from evals import statistics
from evals.answer_costs import CostComparison, TokenTime, compare_cost, compare_times
from evals.results import EvalArm, ItemCounts
from evals.statistics import Array, Paired
from evals.suites import Item, Suite
from pipeline.locations import Uri
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import SuiteSection
from pipeline.storage import ModelRef, Record, digest_json


def unset(value: object) -> bool:
    """Of a field that came later than the first bundles: it is written only where it is set."""
    return value is None or value == ()


class ConfidenceInterval(Record):
    """A value between -1 and 1 with its two-sided 95% interval."""

    value: float
    low: float
    high: float


class Difference(Record):
    """A paired difference, candidate minus champion: 95% interval, and one-sided bounds at the level of its test."""

    value: float
    standard_error: float
    low: float
    high: float
    lower: float
    upper: float
    bootstrap_lower: float
    bootstrap_upper: float


class Guard(Record):
    """A harm that a candidate may not add: `difference` is its increase, which must be shown to lie below `margin`.

    With `rule` harm the increase is too rare to be shown small: the guard fails where it is shown to be larger. With
    `rule` report it is measured, and decides nothing. The values are shares of answers, or losses of score; of `length`
    they are mean tokens, and the difference that of their logarithms.
    """

    name: str
    rule: Literal["safe", "harm", "report"]
    champion: float
    candidate: float
    margin: float
    difference: Difference


class Slice(Record):
    """One kind of item, for the reader. `p_holm` is two-sided and adjusted for the number of slices."""

    name: str
    items: int
    champion: float
    candidate: float
    difference: ConfidenceInterval
    p_holm: float


class PassAt(Record):
    """The chance that one of k answers is right, for the reader (the unbiased estimate of arXiv 2107.03374)."""

    k: int
    champion: float
    candidate: float


def _absent(value: object) -> bool:
    """Left out of a report, so that its digest is what it was before there was such a field."""
    return value in (None, ())


class Comparison(Record):
    """`mcnemar_p` is one-sided, and None unless every cluster is one sample. `ungraded` counts samples."""

    items: int
    clusters: int
    samples_per_item: int
    champion: ConfidenceInterval
    candidate: ConfidenceInterval
    difference: Difference
    mcnemar_p: float | None
    guards: tuple[Guard, ...]
    slices: tuple[Slice, ...]
    pass_at: tuple[PassAt, ...]
    ungraded_champion: int
    ungraded_candidate: int
    cost: CostComparison | None = Field(default=None, exclude_if=_absent)
    """None where the recipe has no prices."""
    token_times: tuple[TokenTime, ...] = Field(default=(), exclude_if=_absent)
    """Of answers whose times are known, for the reader."""


class SuiteMeasurement(Record):
    """A comparison over one suite, or the reasons for which these outcomes cannot be compared."""

    suite: str
    problems: tuple[str, ...]
    comparison: Comparison | None
    advisory: str = ""
    """Why the suite decides nothing, whatever its role."""
    best: str | None = Field(default=None, exclude_if=unset)
    """Digest of the best ever on these items, where it is neither of the two; the guard `best_ever` is against it."""
    alpha: float | None = Field(default=None, exclude_if=unset)
    """Level of its test of improvement, where that is done in two steps."""


class WinRate(Record):
    """The candidate's win rates, each less one half: above 0 the candidate is preferred.

    `raw` is as judged, `controlled` at equal lengths, which is the one to decide by. `length_effect` is phi.
    """

    pairs: int
    clusters: int
    raw: Difference
    controlled: Difference
    length_effect: float
    disagreement: float
    """Share of the pairs that were asked whose two orders disagree."""
    length_differences: int
    """Distinct ones."""


class JudgedMeasurement(Record):
    """How often a judge prefers the candidate's answers, or the reasons for which these judgements show nothing.

    The bounds of `win_rate` are at the level of the suite's test. `loss` is set where the rate guards: how far it lies
    below one half, at equal lengths. `judge` is the model's name, "" where the recipe has none.
    """

    suite: str
    judge: str
    problems: tuple[str, ...]
    win_rate: WinRate | None
    loss: Guard | None


class FutilityLook(Record):
    """A target when asking ended: `power` is the chance that the final test over all `planned` clusters would have
    passed, given the answers to `clusters` of them. No estimate of the score: it is only there because it is low."""

    suite: str
    clusters: int
    planned: int
    power: float


class FutilityStop(Record):
    """Asking ended at a look (1 is the first) because an improvement had become unlikely to be shown."""

    look: int
    of: int
    targets: tuple[FutilityLook, ...]

    def reason(self) -> str:
        """For the verdict and the reader."""
        chances = "; ".join(
            f"{each.suite}: {each.clusters:,} of {each.planned:,} clusters asked, {each.power:.1%} chance that all of "
            "them would show it"
            for each in self.targets
        )
        return f"improvement not shown: stopped for futility at look {self.look} of {self.of} ({chances})"


class BundleRef(Record):
    uri: Uri
    digest: str


class EvalReport(Record):
    """What the evaluation of one candidate measured; the gate reads this and nothing else.

    `problems` are of the evidence as a whole, `measurements` follow the recipe's suites, `protocol` is a digest.
    """

    iteration: str
    champion: ModelRef
    candidate: ModelRef
    protocol: str
    section: Evaluation
    problems: tuple[str, ...]
    measurements: tuple[SuiteMeasurement, ...]
    bundle: BundleRef
    judged: tuple[JudgedMeasurement, ...] = ()
    """Of the suites that are judged, in the recipe's order."""
    stop: FutilityStop | None = Field(default=None, exclude_if=unset)
    """Why asking ended early: nothing is compared then."""
    confirming: tuple[str, ...] = Field(default=(), exclude_if=unset)
    """Suites that are asked in a second step, which decides with the first."""
    reduced: int = Field(default=0, exclude_if=lambda items: items == 0)
    """Items that were erased with their counts since: what is left carries no verdict."""

    def digest(self) -> str:
        """sha256 of the report, wherever its bundle and the models lie."""
        places = {name: {"uri"} for name in ("bundle", "champion", "candidate")}
        content = self.model_dump(mode="json", exclude=places)
        if not self.judged:  # as it was before suites were judged
            del content["judged"]
        return digest_json(content)

    def target(self) -> SuiteMeasurement:
        """The first target whose answers are checked, else the first guard: what one line has room for."""
        roles = {name: [each.name for each in self.section.asked if each.role == name] for name in ("target", "guard")}
        name = (roles["target"] or roles["guard"])[0]
        missing = SuiteMeasurement(suite=name, problems=self.problems, comparison=None)
        return next((each for each in self.measurements if each.suite == name), missing)


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
