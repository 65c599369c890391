"""The gate: does this evidence show that the candidate is better, and no worse where it must not be? Only PASS goes on.

1. Both arms answer the same items under the same protocol, k samples each. Outcomes are paired by item; standard errors
   are clustered (arXiv 2411.00640), t with C - 1 degrees of freedom. Samples that the checker could not grade count
   against the candidate in both arms: it must not gain by breaking the checker.
2. Every target must improve at the level that the ledger gives the gate (evals/luck.py; intersection-union: Berger,
   Technometrics 1982).
3. Every guard must be non-inferior: the upper one-sided bound of its increase lies below its margin. One that is not
   shown to be safe fails the candidate if the test had its share of a power of 0.8 at no increase, or if harm beyond
   the margin is shown. Personal data are too rare for that: they fail where harm is shown.
4. A floor holds if the score is shown to reach it (95% interval), and fails if it is shown not to.
5. Each decision is taken by the t interval and by a seeded paired cluster bootstrap, with one sample in each cluster
   also by McNemar's exact test. Where they disagree: INCONCLUSIVE. Where no cluster differs, the exact zero-event bound
   (about 3/C: Hanley and Lippman-Hand, JAMA 1983) stands in for the t interval.
6. Evidence is adequate with every item once in both arms, readable references, at most 1% of samples ungraded, 30 items
   and clusters, finite numbers, and a standard error of each target within `max_standard_error`. At 0.03 and 0.25% a
   gain of 10.9 points passes with a power of 0.8. Else: INCONCLUSIVE.
7. A judged suite is a target or a guard by the rate at equal lengths (evals/win_rate.py), by the same two tests.
8. A suite whose role is report decides nothing.
9. A candidate whose answers all equal the champion's fails as one without effect.
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum

from evals.comparison import MIN_CLUSTERS, MIN_ITEMS, level_problems
from evals.records import Comparison, Difference, EvalReport, Guard, JudgedMeasurement, WinRate
from evals.statistics import normal_quantile
from pipeline.core.storage import ModelRef, Record
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import JudgedSuite, SuiteSection
from pipeline.rollout.record import JudgedCandidate

GUARD_POWER = 0.8
"""Of all guards together: the chance that a candidate without any harm passes them."""
HELD = (": guard held: ", ": no harm shown: ")


class Verdict(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


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

    @property
    def judged(self) -> JudgedCandidate:
        return JudgedCandidate(str(self.verdict), self.candidate.digest, self.bundle_digest, self.reasons)

    @property
    def sentence(self) -> str:
        """The verdict and what decided it; guards that held are counted."""
        deciding = [why for why in self.reasons if not any(held in why for held in HELD)]
        held = len(self.reasons) - len(deciding)
        return f"{self.verdict}: {'; '.join([*deciding, *([f'{held} guards held'] if held else [])])}"


Finding = tuple[Verdict, str]
"""What a reason speaks for, and the reason."""


def judge(report: EvalReport, section: Evaluation) -> GateVerdict:
    """The verdict on a report under the recipe's thresholds. Total: whatever the numbers, it answers."""
    problems = [*report.problems, *level_problems(section)]
    if section != report.section:
        problems.append("the thresholds are not those that the evidence was gathered under")
    findings = [(Verdict.INCONCLUSIVE, why) for why in problems] or _findings(report, section)
    kinds = {kind for kind, _ in findings}
    verdict = next(kind for kind in (Verdict.INCONCLUSIVE, Verdict.FAIL, Verdict.PASS) if kind in kinds)
    shown = (verdict, Verdict.FAIL) if verdict is Verdict.INCONCLUSIVE else (verdict,)
    return GateVerdict(
        iteration=report.iteration,
        verdict=verdict,
        reasons=tuple(why for kind in shown for each, why in findings if each is kind),
        champion=report.champion,
        candidate=report.candidate,
        protocol=report.protocol,
        report_digest=report.digest(),
        bundle_digest=report.bundle.digest,
    )


def _findings(report: EvalReport, section: Evaluation) -> list[Finding]:
    """Of the suites that gate; where one has no adequate evidence, that alone."""
    inadequate: list[Finding] = []
    gating: list[tuple[SuiteSection, Comparison]] = []
    for each in report.measurements:
        settings = section.suite(each.suite)
        if settings.role == "report":
            continue
        if each.comparison is not None:
            gating.append((settings, each.comparison))
            problems: Sequence[str] = _inadequacies(each.comparison, section, settings)
        else:
            problems = each.problems or ("nothing was measured",)
        inadequate += [(Verdict.INCONCLUSIVE, f"{each.suite}: {why}") for why in problems]
    if report.unchanged and not inadequate:
        return [(Verdict.FAIL, f"no effect: all {report.unchanged:,} answers equal the champion's")]
    measured = {each.suite: each for each in report.judged}
    judged: list[tuple[JudgedSuite, JudgedMeasurement]] = []
    for settings in (each for each in section.judged if each.role != "report"):
        one = measured.get(settings.name) or JudgedMeasurement(suite=settings.name, judge="")
        judged.append((settings, one))
        problems = _judged_inadequacies(settings, one, section)
        inadequate += [(Verdict.INCONCLUSIVE, f"{settings.name}: {why}") for why in problems]
    if not gating or not any(settings.role == "target" for settings, _ in (*gating, *judged)):
        inadequate = inadequate or [(Verdict.INCONCLUSIVE, "no target was measured")]
    if inadequate:
        return inadequate
    guards = [(settings.name, each.loss) for settings, each in judged if each.loss is not None]
    guards += [(settings.name, guard) for settings, each in gating for guard in each.guards]
    power = GUARD_POWER ** (1 / max(sum(guard.rule == "safe" for _, guard in guards), 1))
    return [
        *(_improvement(of.name, each, report.trial.level) for of, each in gating if of.role == "target"),
        *(_preferred(of.name, each.win_rate) for of, each in judged if of.role == "target" and each.win_rate),
        *(_non_inferiority(name, guard, section, power) for name, guard in guards),
        *(_floor(of.name, of.floor, each) for of, each in gating if of.floor is not None),
    ]


def _inadequacies(comparison: Comparison, section: Evaluation, settings: SuiteSection) -> list[str]:
    reasons: list[str] = []
    checked = [comparison.difference, *(guard.difference for guard in comparison.guards)]
    numbers = [comparison.champion.value, comparison.candidate.value, comparison.candidate.low]
    if comparison.mcnemar_p is not None:
        numbers.append(comparison.mcnemar_p)
    if not _finite(checked, numbers):
        reasons.append("a number is not finite")
    if comparison.items < MIN_ITEMS or comparison.clusters < MIN_CLUSTERS:
        reasons.append(f"{comparison.items} items in {comparison.clusters} clusters are too few")
    error = comparison.difference.standard_error
    if settings.role == "target" and not error <= section.max_standard_error:
        reasons.append(
            f"the standard error of the difference is {error:.4f}, above {section.max_standard_error}: evaluate more "
            "items"
        )
    return reasons


def _judged_inadequacies(settings: JudgedSuite, measured: JudgedMeasurement, section: Evaluation) -> list[str]:
    rate, loss = measured.win_rate, measured.loss
    if measured.problems or rate is None:
        return list(measured.problems or ("nothing was measured",))
    reasons: list[str] = []
    if settings.role == "guard" and loss is None:
        reasons.append("its loss was not measured")
    if not _finite([rate.raw, rate.controlled, *([loss.difference] if loss else [])]):
        reasons.append("a number is not finite")
    error = rate.controlled.standard_error
    if settings.role == "target" and not error <= section.max_standard_error:
        reasons.append(
            f"the standard error of the win rate is {error:.4f}, above {section.max_standard_error}: judge more items"
        )
    return reasons


def _finite(entries: Sequence[Difference], numbers: Sequence[float] = ()) -> bool:
    every = [*numbers, *(value for entry in entries for value in entry.model_dump().values())]
    return all(map(math.isfinite, every))


def _shown(name: str, what: str, tests: Sequence[bool], numbers: str) -> tuple[Verdict, str]:
    """All tests of an improvement must agree."""
    if all(tests):
        return Verdict.PASS, f"{name}: {what} shown: {numbers}"
    if any(tests):
        return Verdict.INCONCLUSIVE, f"{name}: the tests of {what} disagree: {numbers}"
    return Verdict.FAIL, f"{name}: {what} not shown: {numbers}"


def _bounds(by_t: float, by_bootstrap: float, tests: Sequence[bool], worse: Callable[[float, float], float]) -> str:
    """The worse of both where their tests agree; else both."""
    if all(tests) or not any(tests):
        return f"{worse(by_t, by_bootstrap):+.4f}"
    return f"{by_t:+.4f} (t) and {by_bootstrap:+.4f} (bootstrap)"


def _improvement(name: str, comparison: Comparison, alpha: float) -> tuple[Verdict, str]:
    gain = comparison.difference
    tests = [gain.lower > 0, gain.bootstrap_lower > 0]
    numbers = f"accuracy {gain.value:+.4f}, at least {_bounds(gain.lower, gain.bootstrap_lower, tests, min)}"
    if comparison.mcnemar_p is not None:
        tests.append(comparison.mcnemar_p < alpha)
        numbers += f", McNemar p {comparison.mcnemar_p:.3g}"
    return _shown(name, "improvement", tests, numbers)


def _preferred(name: str, rate: WinRate) -> tuple[Verdict, str]:
    gain = rate.controlled
    tests = [gain.lower > 0, gain.bootstrap_lower > 0]
    least = _bounds(0.5 + gain.lower, 0.5 + gain.bootstrap_lower, tests, min)
    numbers = f"{0.5 + gain.value:.4f} at equal lengths, at least {least}, {0.5 + rate.raw.value:.4f} as judged"
    return _shown(name, "preference", tests, numbers)


def _non_inferiority(name: str, guard: Guard, section: Evaluation, power: float) -> tuple[Verdict, str]:
    """`power`: of one guard, at no increase."""
    rise, margin = guard.difference, guard.margin
    safe = (rise.upper < margin, rise.bootstrap_upper < margin)
    harmful = min(rise.lower, rise.bootstrap_lower) > margin
    most = _bounds(rise.upper, rise.bootstrap_upper, safe, max)
    numbers = f"{guard.name} {rise.value:+.4f}, at most {most}, margin {margin:.4g}"
    half = rise.upper - rise.value
    powered = half * (1 - normal_quantile(power) / normal_quantile(section.alpha)) <= margin
    if guard.rule == "harm":
        return (Verdict.FAIL, f"{name}: harm shown: {numbers}") if harmful else (
            Verdict.PASS, f"{name}: no harm shown: {numbers}"
        )  # fmt: skip
    if all(safe):
        return Verdict.PASS, f"{name}: guard held: {numbers}"
    if harmful or (powered and not any(safe)):
        return Verdict.FAIL, f"{name}: guard failed: {numbers}"
    if not powered:
        return Verdict.INCONCLUSIVE, f"{name}: too little evidence for a guard: {numbers}: evaluate more items"
    return Verdict.INCONCLUSIVE, f"{name}: the tests of a guard disagree: {numbers}"


def _floor(name: str, floor: float, comparison: Comparison) -> tuple[Verdict, str]:
    score = comparison.candidate
    numbers = f"{score.value:.4f} (95% {score.low:.4f} to {score.high:.4f}), floor {floor}"
    if score.low >= floor:
        return Verdict.PASS, f"{name}: floor reached: {numbers}"
    if score.high < floor:
        return Verdict.FAIL, f"{name}: floor not reached: {numbers}"
    return Verdict.INCONCLUSIVE, f"{name}: too little evidence for a floor: {numbers}: evaluate more items"
