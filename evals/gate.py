"""The gate: does this evidence show that the candidate is better, and no worse where it must not be?

Owns the rule, the verdict and its reasons. Refuses to sample, to average (comparison.py) and to raise: evidence that
cannot be judged is INCONCLUSIVE, and only PASS goes on.

The rule
--------
1. Both arms answer the same items under the same protocol, k samples each (a seed for each answer, the same in both
   arms). Outcomes are paired by item and pass@1 is the mean over the k samples. Standard errors are clustered, because
   items that need the same step succeed and fail together (Miller, "Adding Error Bars to Evals", arXiv 2411.00640): t
   with C - 1 degrees of freedom.
2. The score of every target must improve: the lower one-sided bound of the paired difference lies above 0, at the
   level `improvement_alpha`. All must, so no alpha is divided among them (intersection-union;
   Berger, Technometrics 1982). With `improve: any` one must, at that level over their number (Holm's first step; Scand.
   J. Statist. 1979), and no target may be worse than its margin. With `improve: cost` none may be worse than its
   margin, and answers must be shown to be shorter, at the same level.
3. Every guard must be non-inferior on every target and guard: the upper one-sided 1 - alpha bound of its increase lies
   below its margin. Guards are answers without a result, truncations, refusals and the length of answers, on a suite
   that guards the loss of its score; over the items that ask for a form, answers without it. All must pass
   (intersection-union). A guard that is not shown to be safe fails the candidate if the test had its share of a power
   of 0.8 at no increase (0.8 ** (1 / guards), so that all of them together let a harmless candidate through with 0.8),
   or if harm beyond the margin is shown;
   otherwise it is inconclusive. Personal data in answers are too rare for that: this guard fails where harm beyond its
   margin is shown.
4. A floor holds if the score is shown to reach it (lower end of its 95% interval), and fails if it is shown not to.
5. Each decision is taken twice, by the t interval and by a seeded paired cluster bootstrap (percentile); with one
   sample in each cluster also by McNemar's exact test (Psychometrika 1947). Where they disagree: INCONCLUSIVE.
6. Adequate evidence: every item once in both arms with k samples, none missing, none extra, a reference that the
   checker could read, at most 1% of an arm's samples ungraded, at least 30 items and 30 clusters, a standard error
   of a target within `max_standard_error`, finite numbers. Otherwise INCONCLUSIVE, with the reasons.
7. A judged suite (evals/win_rate.py) is a target or a guard by the rate at which the candidate is preferred at equal
   lengths: shown to lie above one half, or not below it by the margin, by cluster t and bootstrap as in 5. A judge that
   contradicts itself when a pair is swapped, or whose liking for length cannot be told: INCONCLUSIVE.
8. FAIL means that the evidence was adequate, and improvement was not shown or a guard or floor failed. A suite whose
   role is report decides nothing, whatever is wrong with it.

Deliberate departures
---------------------
- Samples that the checker could not grade count against the candidate in both arms, instead of being dropped: a
  candidate must not gain by breaking the checker.
- Where no cluster differs, or all do alike, the t interval has no width; the exact zero-event bound (about 3/C: Hanley
  and Lippman-Hand, JAMA 1983) stands in for it, so that "nothing happened in 40 items" does not certify a margin of 3
  points.
- The standard error's cap stands in for a power calculation of the improvement test: at 0.03 and 0.25%, a true
  gain of 10.9 points passes with a power of 0.8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum

from evals import preference
from evals.comparable import MIN_CLUSTERS, MIN_ITEMS, level_problems
from evals.limits import limits
from evals.measurements import Comparison, Difference, EvalReport, Guard, JudgedMeasurement
from evals.statistics import normal_quantile
from pipeline.core.storage import ModelRef, Record
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import SuiteSection

GUARD_POWER = 0.8
"""Of all guards together: the chance that a candidate without any harm passes them."""


class Verdict(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    EVIDENCE_REDUCED = "EVIDENCE_REDUCED"
    """There was a verdict, and a part of what it rests on was erased since: nothing new is promoted on it."""


class GateVerdict(Record):
    """The decision on one candidate, bound by digest to the report, the evidence and the weights it is about."""

    iteration: str
    verdict: Verdict
    reasons: tuple[str, ...]
    champion: ModelRef
    candidate: ModelRef
    protocol: str
    report_digest: str
    bundle_digest: str


class Findings:
    """What a judgement has come to: reasons by what they speak for."""

    def __init__(self, inconclusive: list[str]) -> None:
        self.inconclusive, self.failures, self.passes = inconclusive, list[str](), list[str]()

    def add(self, kind: Verdict, reason: str) -> None:
        lists = {Verdict.PASS: self.passes, Verdict.FAIL: self.failures}
        lists.get(kind, self.inconclusive).append(reason)

    def verdict(self) -> tuple[Verdict, list[str]]:
        if self.inconclusive:
            return Verdict.INCONCLUSIVE, [*self.inconclusive, *self.failures]
        return (Verdict.FAIL, self.failures) if self.failures else (Verdict.PASS, self.passes)


def judge(report: EvalReport, section: Evaluation) -> GateVerdict:
    """The verdict on a report under the recipe's thresholds. Total: whatever the numbers, it answers."""
    findings = Findings([*report.problems, *level_problems(section)])
    if section != report.section:
        findings.inconclusive.append("the thresholds are not those that the evidence was gathered under")
    elif not findings.inconclusive:
        _judge_suites(report, section, findings)
    verdict, reasons = findings.verdict()
    if report.reduced:
        left = f"{report.reduced} items were erased with their counts; what is left would be {verdict}"
        reasons = [f"{left}. A version that serves keeps serving; for another, begin a new iteration.", *reasons]
        verdict = Verdict.EVIDENCE_REDUCED
    return GateVerdict(
        iteration=report.iteration,
        verdict=verdict,
        reasons=tuple(reasons),
        champion=report.champion,
        candidate=report.candidate,
        protocol=report.protocol,
        report_digest=report.digest(),
        bundle_digest=report.bundle.digest,
    )


def _judge_suites(report: EvalReport, section: Evaluation, findings: Findings) -> None:
    gating: list[tuple[SuiteSection, Comparison]] = []
    for each in report.measurements:
        settings = section.suite(each.suite)
        if settings.role == "report":
            continue
        if each.comparison is None:
            findings.inconclusive += [f"{each.suite}: {why}" for why in each.problems or ("nothing was measured",)]
        else:
            findings.inconclusive += [
                f"{each.suite}: {why}" for why in _inadequacies(each.comparison, section, settings)
            ]
            gating.append((settings, each.comparison))
    judged = preference.gating(report, section)
    findings.inconclusive += [
        why for settings, each in judged for why in preference.inadequacies(settings, each, section)
    ]
    if not gating or not any(settings.role == "target" for settings, _ in (*gating, *judged)):
        findings.inconclusive = findings.inconclusive or ["no target was measured"]
    if findings.inconclusive:
        return
    losses = [(settings.name, each.loss) for settings, each in judged if each.loss is not None]
    guards = sum(guard.rule == "safe" for _, each in gating for guard in each.guards) + len(losses)
    power = GUARD_POWER ** (1 / max(guards, 1))
    targets = [(s, c) for s, c in gating if s.role == "target"]
    judged_targets = [each for s, each in judged if s.role == "target"]
    _improvements(targets, judged_targets, section, findings)
    for name, loss in losses:
        _non_inferiority(name, loss, section, power, findings)
    for settings, comparison in gating:
        for guard in comparison.guards:
            _non_inferiority(settings.name, guard, section, power, findings)
        for held, text in limits(settings, comparison):
            {True: findings.passes, False: findings.failures, None: findings.inconclusive}[held].append(text)


def _inadequacies(comparison: Comparison, section: Evaluation, settings: SuiteSection) -> list[str]:
    reasons: list[str] = []
    checked = [comparison.difference, *(guard.difference for guard in comparison.guards)]
    numbers = [comparison.champion.value, comparison.candidate.value, comparison.candidate.low]
    numbers += [value for entry in checked for value in entry.model_dump().values()]
    if comparison.mcnemar_p is not None:
        numbers.append(comparison.mcnemar_p)
    if not all(map(math.isfinite, numbers)):
        reasons.append("a number is not finite")
    if comparison.items < MIN_ITEMS or comparison.clusters < MIN_CLUSTERS:
        reasons.append(f"{comparison.items} items in {comparison.clusters} clusters are too few")
    if settings.role == "target" and not comparison.difference.standard_error <= section.max_standard_error:
        reasons.append(
            f"the standard error of the difference is {comparison.difference.standard_error:.4f}, "
            f"above {section.max_standard_error}: evaluate more items"
        )
    return reasons


def _improvements(
    targets: list[tuple[SuiteSection, Comparison]],
    judged: list[JudgedMeasurement],
    section: Evaluation,
    findings: Findings,
) -> None:
    if section.improve == "cost":
        for settings, comparison in targets:
            _shorter(settings.name, comparison, section, findings)
        return
    outcomes = [_improvement(settings.name, compared, section.target_alpha()) for settings, compared in targets]
    outcomes += map(_preferred, judged)
    if section.improve == "any" and (shown := [text for kind, text in outcomes if kind is Verdict.PASS]):
        findings.passes += shown
        return
    for kind, text in outcomes:
        findings.add(kind, text)


def _improvement(name: str, comparison: Comparison, alpha: float) -> tuple[Verdict, str]:
    gain = comparison.difference
    shown = [gain.lower > 0, gain.bootstrap_lower > 0]
    if comparison.mcnemar_p is not None:
        shown.append(comparison.mcnemar_p < alpha)
    bounds = f"accuracy {gain.value:+.4f}, {_bounds(gain, lambda d: (d.lower, d.bootstrap_lower), 'at least')}"
    if all(shown):
        return Verdict.PASS, f"{name}: improvement shown: {bounds}"
    if any(shown):
        tests = f"{bounds}, McNemar p {comparison.mcnemar_p}"
        return Verdict.INCONCLUSIVE, f"{name}: the tests of improvement disagree: {tests}"
    return Verdict.FAIL, f"{name}: improvement not shown: {bounds}"


def _preferred(measured: JudgedMeasurement) -> tuple[Verdict, str]:
    shown, text = preference.preferred(measured)
    if all(shown):
        return Verdict.PASS, f"preference shown: {text}"
    if any(shown):
        return Verdict.INCONCLUSIVE, f"the tests of preference disagree: {text}"
    return Verdict.FAIL, f"preference not shown: {text}"


def _shorter(name: str, comparison: Comparison, section: Evaluation, findings: Findings) -> None:
    length = next(guard for guard in comparison.guards if guard.name == "length")
    needed = math.log1p(-section.cheaper_by) if section.cheaper_by < 1 else -math.inf
    shown = [bound < needed for bound in (length.difference.upper, length.difference.bootstrap_upper)]
    text = (
        f"{name}: {length.champion:.1f} -> {length.candidate:.1f} tokens an answer, saved at least "
        f"{-math.expm1(length.difference.upper):.1%} (t) and {-math.expm1(length.difference.bootstrap_upper):.1%} "
        f"(bootstrap) of {section.cheaper_by:.0%}"
    )
    if all(shown):
        findings.passes.append(f"shorter answers shown: {text}")
    elif any(shown):
        findings.inconclusive.append(f"the tests of shorter answers disagree: {text}")
    else:
        findings.failures.append(f"shorter answers not shown: {text}")


def _non_inferiority(name: str, guard: Guard, section: Evaluation, power: float, findings: Findings) -> None:
    rise, margin = guard.difference, guard.margin
    safe = (rise.upper < margin, rise.bootstrap_upper < margin)
    harmful = min(rise.lower, rise.bootstrap_lower) > margin
    bounds = f"{guard.name} {rise.value:+.4f}, {_bounds(rise, lambda d: (d.upper, d.bootstrap_upper), 'at most')}"
    bounds += f", margin {margin:.4g}"
    half = rise.upper - rise.value
    powered = half * (1 - normal_quantile(power) / normal_quantile(section.alpha)) <= margin
    if guard.rule == "harm":
        if harmful:
            findings.failures.append(f"{name}: harm shown: {bounds}")
        else:
            findings.passes.append(f"{name}: no harm shown: {bounds}")
    elif all(safe):
        findings.passes.append(f"{name}: guard held: {bounds}")
    elif harmful or (powered and not any(safe)):
        findings.failures.append(f"{name}: guard failed: {bounds}")
    elif not powered:
        findings.inconclusive.append(f"{name}: too little evidence for a guard: {bounds}: evaluate more items")
    else:
        findings.inconclusive.append(f"{name}: the tests of a guard disagree: {bounds}")


def _bounds(entry: Difference, pick: Callable[[Difference], tuple[float, float]], word: str) -> str:
    t, bootstrap = pick(entry)
    return f"{word} {t:+.4f} (t) and {bootstrap:+.4f} (bootstrap)"
