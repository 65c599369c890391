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
   gate's part of a year's luck (evals/ledger.py). All must, so no alpha is divided among them (intersection-union;
   Berger, Technometrics 1982). With `improve: any` one must, at that level over their number (Holm's first step; Scand.
   J. Statist. 1979), and no target may be worse than its margin. With `improve: cost` none may be worse than its
   margin, and answers must be shown to be shorter, at the same level.
3. Every guard must be non-inferior on every target and guard: the upper one-sided 1 - alpha bound of its increase lies
   below its margin. Guards are answers without a result, truncations, refusals and the length of answers, on a suite
   that guards the loss of its score; over the items that ask for a form, answers without it; where the prompts are in
   several languages, answers in another than their prompt's. All must pass (intersection-union). A guard that is not
   shown to be safe fails the candidate if the test had its share of a power of 0.8 at no increase (0.8 ** (1 / guards),
   so that all of them together let a harmless candidate through with 0.8), or if harm beyond the margin is shown;
   otherwise it is inconclusive. Personal data in answers are too rare for that: this guard fails where harm beyond its
   margin is shown.
4. A floor holds if the score is shown to reach it (lower end of its 95% interval), and fails if it is shown not to. So
   does a budget of what an answer costs, by the upper end.
5. Each decision is taken twice, by the t interval and by a seeded paired cluster bootstrap (percentile); with one
   sample in each cluster also by McNemar's exact test (Psychometrika 1947). Where they disagree: INCONCLUSIVE.
6. Adequate evidence: every item once in both arms with k samples, none missing, none extra, a reference that the
   checker could read, at most 1% of an arm's samples ungraded, at least 30 items and 30 clusters, a standard error
   of a target within `max_standard_error`, finite numbers. Otherwise INCONCLUSIVE, with the reasons.
7. A judged suite (evals/win_rate.py) is a target or a guard by the rate at which the candidate is preferred at equal
   lengths: shown to lie above one half, or not below it by the margin, by cluster t and bootstrap as in 5. A judge that
   contradicts itself when a pair is swapped, or whose liking for length cannot be told: INCONCLUSIVE.
8. FAIL means that the evidence was adequate, and improvement was not shown or a guard or floor failed. A suite whose
   role is report decides nothing, whatever is wrong with it; nor does one whose own items speak against it
   (`advisory`), such as references on which people do not agree.

Deliberate departures
---------------------
- Samples that the checker could not grade count against the candidate in both arms, instead of being dropped: a
  candidate must not gain by breaking the checker.
- Where no cluster differs, or all do alike, the t interval has no width; the exact zero-event bound (about 3/C: Hanley
  and Lippman-Hand, JAMA 1983) stands in for it, so that "nothing happened in 40 items" does not certify a margin of 3
  points.
- The standard error's cap stands in for a power calculation of the improvement test: at 0.03 and 0.25%, a true
  gain of 10.9 points passes with a power of 0.8 (`python -m evals plan` says what a recipe's suites can show).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

from evals import preference
from evals.comparison import Comparison, Difference, EvalReport, Guard, JudgedMeasurement
from evals.limits import limits
from evals.results import EvalArm, Protocol
from evals.runner import sampling
from evals.statistics import normal_quantile
from evals.suites import Suite
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import SuiteSection
from pipeline.storage import ModelRef, Record

MIN_ITEMS = 30
MIN_CLUSTERS = 30
MAX_UNGRADED_SHARE = 0.01
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

    def verdict(self) -> tuple[Verdict, list[str]]:
        if self.inconclusive:
            return Verdict.INCONCLUSIVE, [*self.inconclusive, *self.failures]
        return (Verdict.FAIL, self.failures) if self.failures else (Verdict.PASS, self.passes)


def judge(report: EvalReport, section: Evaluation) -> GateVerdict:
    """The verdict on a report under the recipe's thresholds. Total: whatever the numbers, it answers."""
    findings = Findings([*report.problems, *_level_problems(section)])
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
        if settings.role == "report" or each.advisory:
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
        advisory = [f"{each.suite}: {each.advisory}" for each in report.measurements if each.advisory]
        findings.inconclusive = findings.inconclusive or advisory or ["no target was measured"]
    if findings.inconclusive:
        return
    losses = [(settings.name, each.loss) for settings, each in judged if each.loss is not None]
    guards = sum(guard.rule == "safe" for _, each in gating for guard in each.guards) + len(losses)
    power = GUARD_POWER ** (1 / max(guards, 1))
    targets = [(s, c) for s, c in gating if s.role == "target"]
    _improvements(targets, [each for s, each in judged if s.role == "target"], section, findings)
    for name, loss in losses:
        _non_inferiority(name, loss, section, power, findings)
    for settings, comparison in gating:
        for guard in comparison.guards:
            _non_inferiority(settings.name, guard, section, power, findings)
        for held, text in limits(settings, comparison, section):
            {True: findings.passes, False: findings.failures, None: findings.inconclusive}[held].append(text)


def problems(
    suite: Suite, arms: tuple[EvalArm, EvalArm], section: Evaluation, settings: SuiteSection, graded: bool = True
) -> list[str]:
    """Why these two runs, champion first, cannot be compared; empty when they can. `graded`: by the grades of their
    answers, not by the answers alone."""
    if graded and getattr(settings, "check", "") == "none":
        return ["its items have no reference (check: none): judged suites alone compare the answers"]
    ids = [item.id for item in suite.items]
    plan = sampling(section, settings)
    reasons = _level_problems(section)
    items, clusters = (2, 2) if settings.role == "report" else (MIN_ITEMS, MIN_CLUSTERS)  # two have a spread
    if len(ids) < items:
        reasons.append(f"{len(ids)} items are too few (at least {items})")
    if suite.clusters < clusters:
        reasons.append(f"{suite.clusters} clusters are too few (at least {clusters})")
    reasons += _id_problems("the suite", ids, ids)
    reasons += _protocol_problems(*(arm.protocol for arm in arms))
    for name, arm in zip(("champion", "candidate"), arms, strict=True):
        asked = arm.protocol.answers
        if arm.protocol.suite_digest != suite.digest():
            reasons.append(f"{name}: the items are not those that it answered (suite digest)")
        if (asked.temperature, asked.max_completion_tokens, asked.seed, arm.protocol.samples) != (
            plan.temperature, plan.max_completion_tokens, plan.seed, plan.samples,
        ):  # fmt: skip
            reasons.append(f"{name}: it was not sampled as the recipe asks")
        reasons += _id_problems(name, [result.id for result in arm.results], ids)
        reasons += _sample_problems(name, arm, plan.samples, graded)
    return reasons or _prompt_problems(*arms)


ALIKE = {
    "suite": "run both over the same suite",
    "suite_digest": "run both over the same items",
    "samples": "draw as many samples of both",
    "verifier": "grade both with the same release of the verifier",
    "temperature": "sample both by the same plan",
    "max_completion_tokens": "sample both by the same plan",
    "seed": "sample both by the same plan",
    "engine": "serve both with the same engine",
    "version": "serve both with the same release of the engine",
    "device": "serve both on the same kind of device",
    "dtype": "serve both in the same precision",
    "stop_ids": "give both the same eos_token_id in config.json, generation_config.json and tokenizer",
    "context": "give both the same max_position_embeddings in config.json",
    "tokens_digest": "give both the same tokenizer and a chat template that depends on the messages alone",
    "batch_invariant": "serve both with the same flags",
}
"""What makes two protocols equal, by the field that differs."""


def _protocol_problems(champion: Protocol, candidate: Protocol) -> list[str]:
    """The fields in which two protocols differ, each with both values and what would make them equal."""
    one, other = _flat(champion), _flat(candidate)
    return [
        f"the arms ran under different protocols: {name} (champion {_brief(one[name])}, candidate "
        f"{_brief(other[name])}): {ALIKE[name]}"
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
        f"{ALIKE['tokens_digest']}"
    ] if other else []  # fmt: skip


def _brief(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text[:12] if re.fullmatch(r"[0-9a-f]{64}", text) else text


def _level_problems(section: Evaluation) -> list[str]:
    return [] if 0 < section.alpha < 0.5 else [f"alpha is {section.alpha}, not between 0 and 0.5"]


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
    outcomes = [_improvement(settings.name, comparison, section) for settings, comparison in targets]
    outcomes += map(_preferred, judged)
    if section.improve == "any" and (shown := [text for kind, text in outcomes if kind is Verdict.PASS]):
        findings.passes += shown
        return
    for kind, text in outcomes:
        lists = {Verdict.PASS: findings.passes, Verdict.FAIL: findings.failures}
        lists.get(kind, findings.inconclusive).append(text)


def _improvement(name: str, comparison: Comparison, section: Evaluation) -> tuple[Verdict, str]:
    gain = comparison.difference
    shown = [gain.lower > 0, gain.bootstrap_lower > 0]
    if comparison.mcnemar_p is not None:
        shown.append(comparison.mcnemar_p < section.improvement_alpha())
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
    if guard.rule == "report":
        return
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
