"""Simulated evaluations whose truth is known, judged together by the gate's own statistics over arrays (counts are
whole, so numbers are equal to the bit), and some of them also one by one by `gate.judge`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from evals import bundle, gate, statistics
from evals.bundle import EvalEvidence, SuiteEvidence
from evals.gate import Verdict
from evals.records import BundleRef, EvalArm, EvalSample, ItemResult, Protocol, Trial
from evals.runner import sampling
from evals.statistics import Array
from evals.suites import Item, Suite
from pipeline.core.storage import ModelRef
from pipeline.recipe import Evaluation
from pipeline.rewards.verifiers import Outcome
from pipeline.serving.inference import AnswerProtocol, Decoding

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
    champion, candidate = (each.model for each in evidence[0].arms)
    gathered = EvalEvidence(
        iteration="simulated",
        section=section,
        champion=champion,
        candidate=candidate,
        suites=evidence,
        trial=Trial(level=LEVEL, seed=0),
    )
    return gate.judge(bundle.report(gathered, BundleRef(uri="", digest="")), section).verdict


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


MARGIN, LEVEL = 0.05, 0.0025


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
    mean, error = statistics.mean_and_standard_error(sums, sizes)
    shown = mean - statistics.reach(mean, error, len(sizes), alpha)[0] > 0
    if shown.any():  # of the others no bootstrap makes a PASS
        estimates = statistics.paired(sums[shown], sizes, alpha, seed)
        shown[shown] = [each.bootstrap_lower > 0 for each in estimates]
    return shown


def keeps(counts: Counts, margin: float, alpha: float, seed: int) -> Array:
    """Whether each evaluation shows a loss of the score below the margin, as the gate decides it."""
    sums, sizes = counts.sums()
    rise = -sums
    mean, error = statistics.mean_and_standard_error(rise, sizes)
    held = mean + statistics.reach(mean, error, len(sizes), alpha)[1] < margin
    if held.any():
        estimates = statistics.paired(rise[held], sizes, alpha, seed)
        held[held] = [each.bootstrap_upper < margin for each in estimates]
    return held


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
            passed &= improves(each, LEVEL, section.seed)
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
