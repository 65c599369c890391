"""What was measured: candidate against champion, item by item, as numbers with their uncertainty.

Owns the records and how outcomes become counts. Refuses to judge them (gate.py) or to draw them (report.py).
A sample whose check failed or timed out is nobody's point: it counts against the candidate, in either arm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np

from evals import statistics
from evals.runner import EvalArm, EvalSample, ItemResult
from evals.statistics import Array, Paired
from evals.suites import Item, Suite
from pipeline.locations import Uri
from pipeline.recipe import Evaluation
from pipeline.rewards.verifiers import Outcome
from pipeline.storage import ModelRef, Record, digest_json


class ConfidenceInterval(Record):
    """A value between -1 and 1 with its two-sided 95% interval."""

    value: float
    low: float
    high: float


class Difference(Record):
    """A paired difference, candidate minus champion: 95% interval, and one-sided bounds at the recipe's level."""

    value: float
    standard_error: float
    low: float
    high: float
    lower: float
    upper: float
    bootstrap_lower: float
    bootstrap_upper: float


class Guard(Record):
    """The share of samples with a defect. Lower is better, so `difference` is an increase in harm."""

    name: str
    champion: float
    candidate: float
    difference: Difference


class Slice(Record):
    """One kind of item, for the reader. `p_holm` is two-sided and adjusted for the number of slices."""

    name: str
    items: int
    champion: float
    candidate: float
    difference: ConfidenceInterval
    p_holm: float


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
    ungraded_champion: int
    ungraded_candidate: int


class Measurement(Record):
    """A comparison, or the reasons for which these outcomes cannot be compared."""

    problems: tuple[str, ...]
    comparison: Comparison | None


class BundleRef(Record):
    uri: Uri
    digest: str


class EvalReport(Record):
    """What the evaluation of one candidate found; the gate reads this and nothing else. `protocol` is a digest."""

    iteration: str
    champion: ModelRef
    candidate: ModelRef
    suite: str
    protocol: str
    section: Evaluation
    measurement: Measurement
    bundle: BundleRef

    def digest(self) -> str:
        """sha256 of the report, wherever its bundle and the models lie."""
        places = {name: {"uri"} for name in ("bundle", "champion", "candidate")}
        return digest_json(self.model_dump(mode="json", exclude=places))


def is_ungraded(sample: EvalSample) -> bool:
    return sample.outcome.score is None


def _score(sample: EvalSample, ungraded: float) -> float:
    score = sample.outcome.score
    return ungraded if score is None else score


def _no_answer(sample: EvalSample, ungraded: float) -> float:
    return ungraded if is_ungraded(sample) else float(sample.outcome is Outcome.no_answer)


def _truncated(sample: EvalSample, ungraded: float) -> float:
    return float(not sample.finished)


GUARDS: dict[str, Callable[[EvalSample, float], float]] = {"no_answer": _no_answer, "truncated": _truncated}
"""Defects that a candidate may not add. The second argument is what an ungraded sample counts as."""


def compare(suite: Suite, champion: EvalArm, candidate: EvalArm, section: Evaluation) -> Comparison:
    """Compare two complete runs over the same items (gate.problems says whether they are).

    Results are matched by id and counts are whole, so no number depends on the order in which they arrived.
    """
    items = suite.items
    clusters = [item.cluster for item in items]
    before, after = _rows(champion, items), _rows(candidate, items)
    k = section.samples_per_item
    sizes = statistics.cluster_sums(np.full(len(items), float(k)), clusters)
    counts = [(_counts(before, _score, 1.0), _counts(after, _score, 0.0))]
    counts += [(_counts(before, flag, 0.0), _counts(after, flag, 1.0)) for flag in GUARDS.values()]
    sums = statistics.cluster_sums(np.stack([after - before for before, after in counts]), clusters)
    estimates = statistics.paired(sums, sizes, section.alpha, section.seed)
    (before_score, after_score), *defects = counts
    total = float(sizes.sum())
    gains = after_score - before_score
    return Comparison(
        items=len(items),
        clusters=len(sizes),
        samples_per_item=k,
        champion=_accuracy(before_score, sizes, clusters),
        candidate=_accuracy(after_score, sizes, clusters),
        difference=difference(estimates, 0),
        mcnemar_p=statistics.mcnemar(int((gains > 0).sum()), int((gains < 0).sum())) if sizes.max() == 1 else None,
        guards=tuple(
            Guard(
                name=name,
                champion=float(before.sum()) / total,
                candidate=float(after.sum()) / total,
                difference=difference(estimates, row),
            )
            for row, (name, (before, after)) in enumerate(zip(GUARDS, defects, strict=True), start=1)
        ),
        slices=_slices(items, before_score, after_score, k),
        ungraded_champion=sum(is_ungraded(s) for row in before for s in row.samples),
        ungraded_candidate=sum(is_ungraded(s) for row in after for s in row.samples),
    )


def difference(estimates: Paired, row: int) -> Difference:
    """One experiment of `estimates` as a record."""
    return Difference(**{f.name: float(getattr(estimates, f.name)[row]) for f in fields(Paired)})


def _rows(arm: EvalArm, items: Sequence[Item]) -> list[ItemResult]:
    by_id = {result.id: result for result in arm.results}
    return [by_id[item.id] for item in items]


def _counts(rows: list[ItemResult], flag: Callable[[EvalSample, float], float], ungraded: float) -> Array:
    return np.array([sum(flag(sample, ungraded) for sample in row.samples) for row in rows], dtype=np.float64)


def _accuracy(scores: Array, sizes: Array, clusters: list[str]) -> ConfidenceInterval:
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
