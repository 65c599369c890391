"""Simulated evaluations whose truth is known, judged together by the gate's own statistics over arrays (counts are
whole, so numbers are equal to the bit), and some of them also one by one by `gate.judge`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from evals import bundle, gate, statistics
from evals.bundle import SuiteEvidence
from evals.gate import Verdict
from evals.measurements import BundleRef
from evals.results import EvalArm, EvalSample, ItemResult, Protocol
from evals.runner import sampling
from evals.statistics import Array
from evals.suites import Item, Suite
from evals.win_rate import JudgedPair, problems, win_rate
from pipeline.core.storage import ModelRef
from pipeline.recipe import Evaluation
from pipeline.rewards.verifiers import Outcome
from pipeline.serving.inference import Decoding
from pipeline.serving.journal import AnswerProtocol


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


DECODING = Decoding(
    engine="simulated", version="1", device="cpu", dtype="float32", stop_ids=(0,), context=None, tokens_digest="0" * 64
)
RIGHT, WRONG = (
    EvalSample(text="", tokens=9, finished=True, outcome=outcome, answer="")
    for outcome in (Outcome.correct, Outcome.wrong)
)


def judged(section: Evaluation, suites: Mapping[str, Suite], counts: Mapping[str, Counts], row: int) -> Verdict:
    """What the gate says of one of the evaluations, from its samples."""
    evidence = tuple(
        SuiteEvidence(
            suite=suite,
            arms=(
                arm("champion", section, suite, counts[name].champion[row]),
                arm("candidate", section, suite, counts[name].candidate[row]),
            ),
        )
        for name, suite in suites.items()
    )
    gathered = bundle.evidence("simulated", section, bundle.Gathered(evidence))
    report = bundle.report(gathered, bundle.measure(gathered), BundleRef(uri="", digest=""))
    return gate.judge(report, section).verdict


def arm(name: str, section: Evaluation, suite: Suite, right: Array) -> EvalArm:
    """One run, made from the right answers to each item."""
    plan = sampling(section, section.suite(suite.name))
    answers = AnswerProtocol.under(DECODING, plan)
    protocol = Protocol(
        suite=suite.name, suite_digest=suite.digest(), samples=plan.samples, verifier="simulated", answers=answers
    )
    results = (
        ItemResult(id=item.id, samples=(RIGHT,) * int(count) + (WRONG,) * (plan.samples - int(count)))
        for item, count in zip(suite.items, right, strict=True)
    )
    return EvalArm(model=ModelRef(uri=name, digest=name), protocol=protocol, results=tuple(results))


MARGIN = 0.05
GATES_OF_A_YEAR = 20


class Counts(NamedTuple):
    """Right answers of both arms: (E, items) of E evaluations, `k` samples of each; `size` items share a cluster."""

    champion: Array
    candidate: Array
    k: int
    size: int = 1

    def sums(self) -> tuple[Array, Array]:
        """Paired gains as (E, C) sums, and the (C,) sizes."""
        gains = (self.candidate - self.champion).reshape(len(self.champion), -1, self.size).sum(axis=-1)
        return gains, np.full(gains.shape[1], float(self.k * self.size))


def improves(counts: Counts, alpha: float, seed: int) -> Array:
    """Whether each evaluation shows an improvement, as the gate decides it: by t and by the bootstrap."""
    sums, sizes = counts.sums()
    return _shown(sums, sizes, 0.0, alpha, seed)


def keeps(counts: Counts, margin: float, alpha: float, seed: int) -> Array:
    """Whether each evaluation shows a loss of the score below the margin, as the gate decides it."""
    sums, sizes = counts.sums()
    rise = -sums
    mean, error = statistics.mean_and_standard_error(rise, sizes)
    held = mean + statistics.reach(mean, error, len(sizes), alpha)[1] < margin
    if held.any():
        estimates = statistics.paired(rise[held], sizes, alpha, seed)
        held[held] = estimates.bootstrap_upper < margin
    return held


def _shown(sums: Array, sizes: Array, above: float, alpha: float, seed: int) -> Array:
    mean, error = statistics.mean_and_standard_error(sums, sizes)
    shown = mean - statistics.reach(mean, error, len(sizes), alpha)[0] > above
    if shown.any():  # of the others no bootstrap makes a PASS
        estimates = statistics.paired(sums[shown], sizes, alpha, seed)
        shown[shown] = estimates.bootstrap_lower > above
    return shown


def drawn(
    rng: np.random.Generator, gates: int, items: int, k: int, rates: tuple[float, float], size: int = 1
) -> Counts:
    """Evaluations of two models with these mean rates. An item's difficulty is common to both, and to half of it to its
    cluster; the samples are independent."""
    shape = gates, items // size, size
    spread = 0.8 * min(*rates, *(1 - rate for rate in rates))
    common = rng.uniform(-1, 1, (gates, items // size, 1))
    hard = spread * np.where(rng.random(shape) < np.sqrt(0.5), common, rng.uniform(-1, 1, shape)).reshape(gates, items)
    champion, candidate = (rng.binomial(k, rate + hard).astype(np.float64) for rate in rates)
    return Counts(champion, candidate, k, size)


def at_the_margin(small: bool) -> dict[str, float]:
    """One target, three guards: all is well with the candidate but that it loses exactly one guard's margin."""
    gates, real, clusters, size, k = (400, 10, 100, 2, 2) if small else (10_000, 300, 200, 2, 2)
    names = {"target": 0.2, "guard": -MARGIN, "second": 0.12, "third": 0.12}
    suites = [
        {
            "kind": "items",
            "preset": "arithmetic",
            "name": name,
            "role": "target" if name == "target" else "guard",
            "margin": MARGIN,
        }
        for name in names
    ]
    section = Evaluation.model_validate({"suites": suites, "samples_per_item": k, "max_standard_error": 0.05})
    rng = np.random.default_rng(15)
    counts = {name: drawn(rng, gates, clusters * size, k, (0.5, 0.5 + gain), size) for name, gain in names.items()}
    passed = np.ones(gates, dtype=bool)
    for name, each in counts.items():
        if name == "target":
            passed &= improves(each, section.improvement_alpha, section.seed)
        else:
            passed &= keeps(each, MARGIN, section.alpha, section.seed)
    asked = {name: _suite(name, clusters, size) for name in names}
    rows = [*np.flatnonzero(passed)[: real // 2], *np.flatnonzero(~passed)[: real - real // 2]]
    equal = sum((judged(section, asked, counts, row) is Verdict.PASS) == passed[row] for row in rows)
    print(
        f"a guard at its margin of {MARGIN}: {passed.sum()} of {gates:,} gates pass; {equal} of {len(rows)} judged "
        "one by one come to the same"
    )
    return {"gate_pass_at_margin": round(float(passed.mean()), 4), "gate_decisions_equal": equal / len(rows)}


def _suite(name: str, clusters: int, size: int) -> Suite:
    items = (
        Item(
            id=f"item-{n:05d}",
            cluster=f"cluster-{n // size:05d}",
            messages=[{"role": "user", "content": f"{name}: what is {n} and {n}?"}],
            reference=str(2 * n),
            slice="",
        )
        for n in range(clusters * size)
    )
    return Suite(name=name, items=tuple(items))


class YearRule(NamedTuple):
    """How the gates of a year are run. `fresh`: each asks other items, else all ask the same ones, and the champion's
    answers are those of its own gate."""

    alpha: float
    fresh: bool


def lucky_years(small: bool) -> dict[str, float]:
    """Years of gates of candidates that are no better; a pass becomes the champion. Fresh items are the worst case: a
    champion that was lucky is not measured as such again."""
    years, items, k = (300, 200, 2) if small else (10_000, 1_000, 2)
    section = Evaluation(samples_per_item=k)
    level = section.improvement_alpha
    rules = {
        "lucky_year": YearRule(level, fresh=True),
        "lucky_year_same_items": YearRule(level, fresh=False),
        "lucky_year_unplanned": YearRule(section.alpha, fresh=True),
        "lucky_year_unplanned_same_items": YearRule(section.alpha, fresh=False),
    }
    figures = dict[str, float]()
    for name, rule in rules.items():
        rng = np.random.default_rng(20)  # some hundred years at a time, for the memory
        passes = np.concatenate([_year(rng, min(years, 500), items, section, rule) for _ in range(0, years, 500)])
        figures[name] = round(float((passes > 0).mean()), 4)
        print(
            f"{name}: {rule}: a pass in {figures[name]:.1%} of {years:,} years, {passes.mean():.3f} a year", flush=True
        )
    return figures


def _year(rng: np.random.Generator, years: int, items: int, section: Evaluation, rule: YearRule) -> Array:
    """Passes in each year."""
    k = section.samples_per_item

    def chances(count: int) -> Array:
        """Of a right answer to each item, between 0 and 1 and most often about a half."""
        return (rng.random((count, items)) + rng.random((count, items))) / 2

    def answers(chance: Array) -> Array:
        return sum((rng.random(chance.shape) < chance).astype(np.float64) for _ in range(k))

    chance = chances(years)
    champion, passes = answers(chance), np.zeros(years)
    for _ in range(GATES_OF_A_YEAR):
        if rule.fresh:
            chance = chances(years)
            champion = answers(chance)
        candidate = answers(chance)
        passed = improves(Counts(champion, candidate, k), rule.alpha, section.seed)
        champion[passed] = candidate[passed]
        passes += passed
    return passes


def length_control(small: bool) -> dict[str, float]:
    """Judged pairs: the fit against scikit-learn's, and a worse candidate whose answers are 1.65 times as long."""
    from sklearn.linear_model import LogisticRegression

    runs, count, draws = (10, 300, 500) if small else (200, 600, statistics.BOOTSTRAP_DRAWS)
    rng, error = np.random.default_rng(8), 0.0
    for seed in range(runs):
        chosen = rng.uniform(0.2, 0.8), rng.uniform(0.6, 1.8), rng.normal(0, 1.5)
        pairs = simulated_pairs(seed, count, *chosen)
        won = np.array([each.outcome for each in pairs])
        lengths = np.array([float(each.candidate_length - each.champion_length) for each in pairs])
        x = np.tanh(lengths / lengths.std(ddof=1))
        model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=5000)
        rows, weights = np.concatenate([x, x])[:, None], np.concatenate([won, 1 - won])
        model.fit(rows, np.repeat([1, 0], count), sample_weight=weights)
        expected = 1 / (1 + np.exp(-model.intercept_[0]))
        error = max(error, abs(win_rate(pairs, 0.05, 1, draws=2).controlled.value + 0.5 - expected))
    print(f"the controlled rate differs from scikit-learn's by {error:.1e} at most, over {runs} sets of {count} pairs")
    refused = raw = 0
    for seed in range(runs):
        pairs = simulated_pairs(1000 + seed, count, 0.4, 1.65, 1.0)
        rate = win_rate(pairs, Evaluation().alpha, seed, draws)
        assert not problems(pairs)
        refused += not min(rate.controlled.lower, rate.controlled.bootstrap_lower) > 0
        raw += min(rate.raw.lower, rate.raw.bootstrap_lower) > 0
    print(f"a worse candidate (40%), 1.65 times as long: refused in {refused} of {runs}; as judged, better in {raw}")
    return {
        "lc_win_rate_error": round(error, 6),
        "long_winded_refused": refused / runs,
        "long_winded_better_as_judged": raw / runs,
    }
