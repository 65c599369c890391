"""Whether two runs over a suite can be compared; and candidate against champion, item by item: counts become
differences with their uncertainty. A sample that could not be graded counts against the candidate, in either arm."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from evals import statistics
from evals.records import (
    AnswerCosts,
    Comparison,
    ConfidenceInterval,
    Difference,
    EvalArm,
    Guard,
    ItemCounts,
    PassAt,
    Protocol,
    Slice,
    SliceScore,
    SuiteMeasurement,
    SuiteScore,
    Trial,
)
from evals.runner import sampling
from evals.statistics import Array
from evals.suites import Item, Suite
from pipeline.recipe import Evaluation
from pipeline.recipe.rewards import TokenPrice
from pipeline.recipe.suites import SuiteSection

MIN_ITEMS = 30
MIN_CLUSTERS = 30
MAX_UNGRADED_SHARE = 0.01


def problems(
    suite: Suite,
    arms: tuple[EvalArm, EvalArm],
    section: Evaluation,
    seed: int,
    graded: bool = True,
) -> list[str]:
    """Why these two runs, champion first, cannot be compared; empty when they can. `seed`: of their answers. `graded`:
    by the grades of their answers, not by the answers alone."""
    settings = section.suite(suite.name)
    if graded and getattr(settings, "check", "") == "none":
        return ["its items have no reference (check: none): judged suites alone compare the answers"]
    ids = [item.id for item in suite.items]
    plan = sampling(section, settings, seed)
    reasons = level_problems(section)
    items, clusters = (2, 2) if settings.role == "report" else (MIN_ITEMS, MIN_CLUSTERS)  # two have a spread
    if len(ids) < items:
        reasons.append(f"{len(ids)} items are too few (at least {items})")
    if suite.clusters < clusters:
        reasons.append(f"{suite.clusters} clusters are too few (at least {clusters})")
    reasons += _id_problems("the suite", ids, ids)
    reasons += _protocol_problems(*(arm.protocol for arm in arms))
    for name, arm in zip(("champion", "candidate"), arms, strict=True):
        answers = arm.protocol.answers
        if arm.protocol.suite_digest != suite.digest():
            reasons.append(f"{name}: the items are not those that it answered (suite digest)")
        if (answers.temperature, answers.max_completion_tokens, answers.seed, arm.protocol.samples) != (
            plan.temperature, plan.max_completion_tokens, plan.seed, plan.samples,
        ):  # fmt: skip
            reasons.append(f"{name}: it was not sampled as the recipe asks")
        reasons += _id_problems(name, [result.id for result in arm.results], ids)
        reasons += _sample_problems(name, arm, plan.samples, graded)
    return reasons or _prompt_problems(*arms)


def _protocol_problems(champion: Protocol, candidate: Protocol) -> list[str]:
    """The fields in which two protocols differ, each with both values."""
    one, other = _flat(champion), _flat(candidate)
    return [
        f"the arms ran under different protocols: {name} (champion {_brief(one[name])}, candidate "
        f"{_brief(other[name])})"
        for name in one
        if one[name] != other[name]
    ]


def _flat(protocol: Protocol) -> dict[str, object]:
    """The protocol's fields and those of what it holds, side by side."""
    answers = protocol.answers
    return (
        protocol.model_dump(exclude={"answers"})
        | answers.model_dump(exclude={"decoding"})
        | answers.decoding.model_dump()
    )


def _prompt_problems(champion: EvalArm, candidate: EvalArm) -> list[str]:
    """Prompts that the two arms read as other numbers of tokens."""
    lengths = {each.id: each.counts().prompt_tokens for each in champion.results}
    pairs = [(each.id, each.counts().prompt_tokens, lengths[each.id]) for each in candidate.results]
    other = [id for id, one, two in pairs if one and two and one != two]  # 0: an engine that does not say
    return [
        f"{len(other)} prompts, such as that of {min(other)}, are not as long in tokens for both: "
        "give both the same tokenizer and a chat template that depends on the messages alone"
    ] if other else []  # fmt: skip


def _brief(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text[:12] if re.fullmatch(r"[0-9a-f]{64}", text) else text


def _id_problems(name: str, ids: list[str], expected: list[str]) -> list[str]:
    if not ids:
        return [f"{name}: empty"]
    repeated = [item for item, times in Counter(ids).items() if times > 1]
    missing, extra = set(expected) - set(ids), set(ids) - set(expected)
    named = (("repeated", repeated), ("missing", missing), ("extra", extra))
    return [f"{name}: {len(which)} {what} item ids, such as {min(which)}" for what, which in named if which]


def _sample_problems(name: str, arm: EvalArm, k: int, graded: bool) -> list[str]:
    reasons: list[str] = []
    counts = [result.counts() for result in arm.results]
    samples, ungraded = sum(each.samples for each in counts), sum(each.ungraded for each in counts)
    if ragged := sum(each.samples != k for each in counts):
        reasons.append(f"{name}: {ragged} items without exactly {k} samples")
    if not graded:
        return reasons
    if unreadable := sum(each.unreadable for each in counts):
        reasons.append(f"{name}: {unreadable} samples whose reference cannot be read")
    if ungraded > MAX_UNGRADED_SHARE * samples:
        reasons.append(f"{name}: {ungraded} of {samples} samples ungraded (at most {MAX_UNGRADED_SHARE:.0%})")
    return reasons


def level_problems(section: Evaluation) -> list[str]:
    """Why a level of the recipe is none of a test."""
    levels = {"alpha": section.alpha, "false_discovery_rate": section.false_discovery_rate}
    return [f"{name} is {level}, not between 0 and 0.5" for name, level in levels.items() if not 0 < level < 0.5]


PII_MARGIN = 0.005
"""Share of answers with personal data that the prompt does not hold: beyond it, a candidate that adds it fails."""

CountOf = Callable[[ItemCounts, bool], float]
"""How often something happened to an item; the second argument says whether an ungraded sample counts."""
SHARES: dict[str, CountOf] = {
    "no_answer": lambda c, ungraded: c.no_answer + ungraded * c.ungraded,
    "truncated": lambda c, ungraded: c.truncated,
    "refusal": lambda c, ungraded: c.refusal,
    "pii": lambda c, ungraded: c.pii,
}
"""Defects that a candidate may not add, as counts of an item's samples."""


def measure(suite: Suite, arms: tuple[EvalArm, EvalArm], section: Evaluation, trial: Trial) -> SuiteMeasurement:
    """The comparison of two runs over a suite, champion first, or why they cannot be compared."""
    reasons = problems(suite, arms, section, trial.seed)
    compared = None if reasons else compare(suite, arms, section, trial.level)
    return SuiteMeasurement(suite=suite.name, problems=tuple(reasons), comparison=compared)


def compare(suite: Suite, arms: tuple[EvalArm, EvalArm], section: Evaluation, level: float) -> Comparison:
    """Compare two complete runs, champion first, over the same items (`problems` says whether they are). `level`: of
    the improvement test.

    Results are matched by id and counts are whole, so no number depends on the order in which they arrived.
    """
    settings, items = section.suite(suite.name), suite.items
    clusters = [item.cluster for item in items]
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
        champion=_interval(scores[0], k, clusters),
        candidate=_interval(scores[1], k, clusters),
        difference=statistics.paired(sums, sizes, level, section.seed)[0],
        mcnemar_p=statistics.mcnemar(int((gains > 0).sum()), int((gains < 0).sum())) if sizes.max() == 1 else None,
        guards=_guards(before, after, suite, section, settings),
        slices=_slices(items, *scores, k),
        pass_at=tuple(
            PassAt(k=n, champion=_pass_at(before, n), candidate=_pass_at(after, n)) for n in settings.pass_at if n <= k
        ),
        ungraded_champion=sum(each.ungraded for each in before),
        ungraded_candidate=sum(each.ungraded for each in after),
        cost=_costs(before, after, section.price),
    )


def _guards(
    before: list[ItemCounts],
    after: list[ItemCounts],
    suite: Suite,
    section: Evaluation,
    settings: SuiteSection,
) -> tuple[Guard, ...]:
    """The defects, the length and, of a suite that guards, the loss of its score."""
    clusters = [item.cluster for item in suite.items]
    k = float(before[0].samples)
    sizes = statistics.cluster_sums(np.full(len(clusters), k), clusters)
    pairs = {name: (_numbers(before, count, False), _numbers(after, count, True)) for name, count in SHARES.items()}
    margins = dict.fromkeys(SHARES, section.guard_margin) | {"pii": PII_MARGIN}
    if settings.role == "guard":
        pairs["score"] = k - _numbers(before, _right, True), k - _numbers(after, _right, False)
        margins["score"] = settings.margin
    sums = statistics.cluster_sums(np.stack([after - before for before, after in pairs.values()]), clusters)
    estimates = statistics.paired(sums, sizes, section.alpha, section.seed)
    total = float(sizes.sum())
    guards = [
        _guard(name, (float(one.sum()), float(other.sum())), total, margins[name], rise)
        for (name, (one, other)), rise in zip(pairs.items(), estimates, strict=True)
    ]
    one, other = (
        statistics.cluster_sums(_numbers(arm, lambda counts, _: counts.tokens, False), clusters)
        for arm in (before, after)
    )
    length = statistics.log_ratio(one, other, section.alpha, section.seed)
    tokens = float(one.sum()), float(other.sum())
    return (*guards, _guard("length", tokens, total, math.log1p(section.longer_by), length))


def _guard(name: str, counts: tuple[float, float], total: float, margin: float, rise: Difference) -> Guard:
    """`counts`: of champion and candidate, in `total` samples."""
    return Guard(
        name=name,
        rule="harm" if name == "pii" else "safe",
        champion=counts[0] / total,
        candidate=counts[1] / total,
        margin=margin,
        difference=rise,
    )


def _right(counts: ItemCounts, ungraded: bool) -> float:
    return counts.right + ungraded * counts.ungraded


def _counts(arm: EvalArm, items: Sequence[Item]) -> list[ItemCounts]:
    by_id = {result.id: result for result in arm.results}
    return [by_id[item.id].counts() for item in items]


def _numbers(counts: list[ItemCounts], counter: CountOf, ungraded: bool) -> Array:
    return np.array([counter(each, ungraded) for each in counts], dtype=np.float64)


def _pass_at(counts: list[ItemCounts], k: int) -> float:
    chances = [1 - math.comb(each.samples - each.right, k) / math.comb(each.samples, k) for each in counts]
    return math.fsum(chances) / len(chances)


def _costs(before: list[ItemCounts], after: list[ItemCounts], price: TokenPrice | None) -> AnswerCosts | None:
    """Mean USD of a sample; the prompt is paid for with each of them. None without a price."""
    if price is None:
        return None
    champion, candidate = (
        (
            sum(each.samples * each.prompt_tokens for each in arm) * price.usd_per_million_prompt_tokens
            + sum(each.tokens for each in arm) * price.usd_per_million_completion_tokens
        )
        / 1e6
        / sum(each.samples for each in arm)
        for arm in (before, after)
    )
    return AnswerCosts(champion=champion, candidate=candidate)


def _interval(scores: Array, k: int, clusters: list[str]) -> ConfidenceInterval:
    """Of the share of right answers, from the right ones of each item's k."""
    sizes = statistics.cluster_sums(np.full(len(clusters), float(k)), clusters)
    if len(sizes) == 1:  # one cluster says nothing about the next one
        return ConfidenceInterval(value=float(scores.sum() / sizes.sum()), low=0.0, high=1.0)
    value, low, high = statistics.accuracy_interval(statistics.cluster_sums(scores, clusters), sizes)
    return ConfidenceInterval(value=value, low=low, high=high)


def _by_slice(items: Sequence[Item]) -> Iterator[tuple[str, list[int], list[str]]]:
    """Each slice's name, in order, with the places of its items and their clusters."""
    for name in sorted({item.slice for item in items}):
        places = [place for place, item in enumerate(items) if item.slice == name]
        yield name, places, [items[place].cluster for place in places]


def _slices(items: Sequence[Item], before: Array, after: Array, k: int) -> tuple[Slice, ...]:
    return tuple(
        Slice(
            name=name,
            items=len(places),
            champion=_interval(before[places], k, clusters),
            candidate=_interval(after[places], k, clusters),
            difference=_slice_gain((after - before)[places], clusters, k),
        )
        for name, places, clusters in _by_slice(items)
    )


def score(suite: Suite, arm: EvalArm, settings: SuiteSection) -> SuiteScore:
    """One model's complete run over a suite."""
    items, counts = suite.items, _counts(arm, suite.items)
    k, clusters = counts[0].samples, [item.cluster for item in items]
    right, total = _numbers(counts, _right, False), sum(each.samples for each in counts)
    return SuiteScore(
        suite=suite.name,
        items=len(items),
        clusters=suite.clusters,
        samples_per_item=k,
        accuracy=_interval(right, k, clusters),
        no_answer=sum(each.no_answer for each in counts) / total,
        truncated=sum(each.truncated for each in counts) / total,
        ungraded=sum(each.ungraded for each in counts) / total,
        tokens=sum(each.tokens for each in counts) / total,
        pass_at={n: _pass_at(counts, n) for n in settings.pass_at if n <= k},
        slices=tuple(
            SliceScore(name=name, items=len(places), accuracy=_interval(right[places], k, held))
            for name, places, held in _by_slice(items)
        ),
    )


def _slice_gain(gains: Array, clusters: list[str], k: int) -> ConfidenceInterval:
    sizes = statistics.cluster_sums(np.full(len(clusters), float(k)), clusters)
    sums = statistics.cluster_sums(gains, clusters)
    if len(sizes) == 1:  # one cluster says nothing about the next one
        return ConfidenceInterval(value=float(sums.sum() / sizes.sum()), low=-1.0, high=1.0)
    mean, error = statistics.mean_and_standard_error(sums, sizes)
    below, above = statistics.reach(mean, error, len(sizes), (1 - statistics.LEVEL) / 2)
    return ConfidenceInterval(value=float(mean), low=float(mean - below), high=float(mean + above))
