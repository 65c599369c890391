"""The gate: does this evidence show that the candidate is better, and no worse where it must not be?

Owns the rule, the verdict and its reasons. Refuses to sample, to average (comparison.py) and to raise: evidence that
cannot be judged is INCONCLUSIVE, and only PASS goes on.

The rule
--------
1. Both arms answer the same items under the same protocol, k samples each (common seed). Outcomes are paired by item
   and pass@1 is the mean over the k samples. Standard errors are clustered, because items that need the same step
   succeed and fail together (Miller, "Adding Error Bars to Evals", arXiv 2411.00640): t with C - 1 degrees of freedom.
2. Accuracy must improve: the lower one-sided 1 - alpha bound of the paired difference lies above 0.
3. Every guard (completions without an answer, truncations) must be non-inferior: the upper one-sided 1 - alpha bound
   of its increase lies below `guard_margin`. All must pass, so no alpha is divided among them (intersection-union;
   Berger, Technometrics 1982). A guard that is not shown to be safe fails the candidate if the test had a power of 0.8
   at no increase, or if harm beyond the margin is shown; otherwise it is inconclusive.
4. Each decision is taken twice, by the t interval and by a seeded paired cluster bootstrap (percentile); with one
   sample in each cluster also by McNemar's exact test (Psychometrika 1947). Where they disagree: INCONCLUSIVE.
5. Adequate evidence: every item once in both arms with k samples, none missing, none extra, a reference that the
   checker could read, at most 1% of an arm's samples ungraded, at least 30 items and 30 clusters, a standard error
   within `max_standard_error`, finite numbers. Otherwise INCONCLUSIVE, with the reasons.
6. FAIL means that the evidence was adequate, and improvement was not shown or a guard failed.

Deliberate departures
---------------------
- Samples that the checker could not grade count against the candidate in both arms, instead of being dropped: a
  candidate must not gain by breaking the checker.
- Where no cluster differs, or all do alike, the t interval has no width; the exact zero-event bound (about 3/C: Hanley
  and Lippman-Hand, JAMA 1983) stands in for it, so that "nothing happened in 40 items" does not certify a margin of 3
  points.
- Improvement is one endpoint, so Holm's correction (Scand. J. Statist. 1979) is only needed for the table of slices,
  which never gates.
- The standard error's cap stands in for a power calculation of the improvement test: at 0.03 and 5%, a true gain of
  7.5 points passes with a power of 0.8. The same items serve every iteration with the same seed; their reuse is not
  counted.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

from evals.comparison import Comparison, Difference, EvalReport, Guard, is_ungraded
from evals.runner import EvalArm, Protocol, sampling
from evals.statistics import normal_quantile
from evals.suites import Suite
from pipeline.recipe import Evaluation
from pipeline.rewards.verifiers import Outcome
from pipeline.storage import ModelRef, Record

MIN_ITEMS = 30
MIN_CLUSTERS = 30
MAX_UNGRADED_SHARE = 0.01
GUARD_POWER = 0.8


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


def judge(report: EvalReport, section: Evaluation) -> GateVerdict:
    """The verdict on a report under the recipe's thresholds. Total: whatever the numbers, it answers."""
    inconclusive, failures, passes = list(report.measurement.problems), list[str](), list[str]()
    comparison = report.measurement.comparison
    if section != report.section:
        inconclusive.append("the thresholds are not those that the evidence was gathered under")
    if comparison is None:
        inconclusive = inconclusive or ["nothing was measured"]
    elif not inconclusive:
        inconclusive = _inadequacies(comparison, section)
        if not inconclusive:
            _improvement(comparison, section, passes, failures, inconclusive)
            for guard in comparison.guards:
                _non_inferiority(guard, section, passes, failures, inconclusive)
    if inconclusive:
        verdict, reasons = Verdict.INCONCLUSIVE, [*inconclusive, *failures]
    elif failures:
        verdict, reasons = Verdict.FAIL, failures
    else:
        verdict, reasons = Verdict.PASS, passes
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


def problems(suite: Suite, champion: EvalArm, candidate: EvalArm, section: Evaluation) -> list[str]:
    """Why these two runs cannot be compared; empty when they can."""
    reasons = _level_problems(section)
    ids = [item.id for item in suite.items]
    if len(ids) != section.items:
        reasons.append(f"the suite has {len(ids)} items, the recipe asks for {section.items}")
    if len(ids) < MIN_ITEMS:
        reasons.append(f"{len(ids)} items are too few (at least {MIN_ITEMS})")
    clusters = len({item.cluster for item in suite.items})
    if clusters < MIN_CLUSTERS:
        reasons.append(f"{clusters} clusters are too few (at least {MIN_CLUSTERS})")
    reasons += _id_problems("the suite", ids, ids)
    reasons += _protocol_problems(champion.protocol, candidate.protocol)
    for name, arm in (("champion", champion), ("candidate", candidate)):
        if arm.protocol.suite_digest != suite.digest():
            reasons.append(f"{name}: the items are not those that it answered (suite digest)")
        if arm.protocol.sampling != sampling(section):
            reasons.append(f"{name}: it was not sampled as the recipe asks")
        reasons += _id_problems(name, [result.id for result in arm.results], ids)
        reasons += _sample_problems(name, arm, section.samples_per_item)
    return reasons


ALIKE = {
    "suite": "run both over the same suite",
    "suite_digest": "run both over the same items",
    "template_digest": "give both the same chat template",
    "sampling": "sample both by the same plan",
    "verifier": "grade both with the same release of the verifier",
    "engine": "serve both with the same engine",
    "version": "serve both with the same release of the engine",
    "device": "serve both on the same kind of device",
    "dtype": "serve both in the same precision",
    "stop_ids": "give both the same eos_token_id in config.json, generation_config.json and tokenizer",
    "context": "give both the same max_position_embeddings in config.json",
    "tokens_digest": "give both the same tokenizer and a chat template that depends on the messages alone",
}
"""What makes two protocols equal, by the field that differs."""


def _protocol_problems(champion: Protocol, candidate: Protocol) -> list[str]:
    """The fields in which two protocols differ, each with both values and what would make them equal."""
    if (champion.decoding is None) != (candidate.decoding is None):
        return ["the arms ran under different protocols: one does not say what decoded it: evaluate both anew"]
    one, other = _flat(champion), _flat(candidate)
    return [
        f"the arms ran under different protocols: {name} (champion {_brief(one[name])}, candidate "
        f"{_brief(other[name])}): {ALIKE[name]}"
        for name in one
        if one[name] != other[name]
    ]


def _flat(protocol: Protocol) -> dict[str, object]:
    """The protocol's fields and those of its decoding, side by side."""
    decoding = protocol.decoding
    return protocol.model_dump(exclude={"decoding"}) | (decoding.model_dump() if decoding else {})


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


def _sample_problems(name: str, arm: EvalArm, k: int) -> list[str]:
    reasons: list[str] = []
    samples = [sample for result in arm.results for sample in result.samples]
    ragged = sum(len(result.samples) != k for result in arm.results)
    if ragged:
        reasons.append(f"{name}: {ragged} items without exactly {k} samples")
    unparsable = sum(sample.outcome is Outcome.unparsable_gold for sample in samples)
    if unparsable:
        reasons.append(f"{name}: {unparsable} samples whose reference cannot be read")
    ungraded = sum(map(is_ungraded, samples))
    if ungraded > MAX_UNGRADED_SHARE * len(samples):
        reasons.append(f"{name}: {ungraded} of {len(samples)} samples ungraded (at most {MAX_UNGRADED_SHARE:.0%})")
    return reasons


def _inadequacies(comparison: Comparison, section: Evaluation) -> list[str]:
    reasons = _level_problems(section)
    checked = [comparison.difference, *(guard.difference for guard in comparison.guards)]
    numbers = [comparison.champion.value, comparison.candidate.value]
    numbers += [value for entry in checked for value in entry.model_dump().values()]
    if comparison.mcnemar_p is not None:
        numbers.append(comparison.mcnemar_p)
    if not all(map(math.isfinite, numbers)):
        reasons.append("a number is not finite")
    if comparison.items < MIN_ITEMS or comparison.clusters < MIN_CLUSTERS:
        reasons.append(f"{comparison.items} items in {comparison.clusters} clusters are too few")
    if not comparison.difference.standard_error <= section.max_standard_error:
        reasons.append(
            f"the standard error of the difference is {comparison.difference.standard_error:.4f}, "
            f"above {section.max_standard_error}: evaluate more items"
        )
    return reasons


def _improvement(
    comparison: Comparison, section: Evaluation, passes: list[str], failures: list[str], inconclusive: list[str]
) -> None:
    gain = comparison.difference
    shown = [gain.lower > 0, gain.bootstrap_lower > 0]
    if comparison.mcnemar_p is not None:
        shown.append(comparison.mcnemar_p < section.alpha)
    bounds = f"accuracy {gain.value:+.4f}, {_bounds(gain, lambda d: (d.lower, d.bootstrap_lower), 'at least')}"
    if all(shown):
        passes.append(f"improvement shown: {bounds}")
    elif any(shown):
        inconclusive.append(f"the tests of improvement disagree: {bounds}, McNemar p {comparison.mcnemar_p}")
    else:
        failures.append(f"improvement not shown: {bounds}")


def _non_inferiority(
    guard: Guard, section: Evaluation, passes: list[str], failures: list[str], inconclusive: list[str]
) -> None:
    rise, margin = guard.difference, section.guard_margin
    safe = (rise.upper < margin, rise.bootstrap_upper < margin)
    bounds = f"{guard.name} {rise.value:+.4f}, {_bounds(rise, lambda d: (d.upper, d.bootstrap_upper), 'at most')}"
    half = rise.upper - rise.value
    powered = half * (1 - normal_quantile(GUARD_POWER) / normal_quantile(section.alpha)) <= margin
    if all(safe):
        passes.append(f"guard held: {bounds}, margin {margin}")
    elif min(rise.lower, rise.bootstrap_lower) > margin or (powered and not any(safe)):
        failures.append(f"guard failed: {bounds}, margin {margin}")
    elif not powered:
        inconclusive.append(f"too little evidence for a guard: {bounds}, margin {margin}: evaluate more items")
    else:
        inconclusive.append(f"the tests of a guard disagree: {bounds}, margin {margin}")


def _bounds(entry: Difference, pick: Callable[[Difference], tuple[float, float]], word: str) -> str:
    t, bootstrap = pick(entry)
    return f"{word} {t:+.4f} (t) and {bootstrap:+.4f} (bootstrap)"
