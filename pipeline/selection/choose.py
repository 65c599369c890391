"""The rule: GRPO, DPO, SFT, KTO, or no training, from the evidence and the recipe's thresholds.
docs/selection.md gives its reasons. Every estimate counts by the end of its interval that speaks against the method."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pipeline.core.estimate import share
from pipeline.core.storage import Record
from pipeline.recipe import Selection
from pipeline.recipe.methods import METHODS, Method, MethodName, titles
from pipeline.selection.checks import EvidenceCheck, checks
from pipeline.selection.cost import MethodCost, zero_variance
from pipeline.selection.evidence import Evidence
from pipeline.selection.noise import ENOUGH_REVIEWS

Choice = Literal[MethodName, "none"]
MAX_GENERATIONS = 64
"""The largest group that is proposed against zero variance."""
NARROWER = 10
"""How many times narrower an interval is proposed to become, by a hundred times its observations."""


class MethodDecision(Record):
    """The method and its grounds. `lacks`: by method that does not qualify."""

    method: Choice
    forced: bool
    reasons: tuple[str, ...]
    lacks: dict[MethodName, tuple[str, ...]]
    checks: tuple[EvidenceCheck, ...]
    evidence: Evidence
    thresholds: Selection
    expected: dict[MethodName, MethodCost]
    would_change: tuple[str, ...]
    """What would have to change for another decision, in numbers."""

    @property
    def forceable(self) -> tuple[MethodName, ...]:
        """The methods that would be trained on this evidence if the recipe forced them."""
        return tuple(name for name, each in METHODS.items() if not _forbidding(each, self.evidence, self.checks))


def choose(
    evidence: Evidence,
    thresholds: Selection,
    min_coverage: float,
    expected: Mapping[MethodName, MethodCost] | None = None,
) -> MethodDecision:
    expected = dict(expected or {})
    groups = next((cost for cost in expected.values() if cost.num_generations), None)
    held = checks(evidence, thresholds, min_coverage, groups)
    failed: dict[MethodName, list[EvidenceCheck]] = {
        name: [check for check in held if name in check.needed_by and not check.holds] for name in METHODS
    }
    lacks: dict[MethodName, tuple[str, ...]] = {name: tuple(map(str, why)) for name, why in failed.items() if why}
    method, reasons = _decide(evidence, thresholds, held, failed)
    return MethodDecision(
        method=method,
        forced=thresholds.method != "auto",
        reasons=reasons,
        lacks=lacks,
        checks=held,
        evidence=evidence,
        thresholds=thresholds,
        expected=expected,
        would_change=tuple(_would_change(evidence, held, method, groups)),
    )


def _decide(
    evidence: Evidence,
    thresholds: Selection,
    held: tuple[EvidenceCheck, ...],
    failed: Mapping[MethodName, list[EvidenceCheck]],
) -> tuple[Choice, tuple[str, ...]]:
    if thresholds.method != "auto":
        forced = METHODS[thresholds.method]
        if forbidding := _forbidding(forced, evidence, held):
            return "none", tuple(f"the recipe forces {forced.title}, but {each}" for each in forbidding)
        return thresholds.method, (f"forced by the recipe (selection.method: {thresholds.method})",)
    hold = {check.key for check in held if check.holds}
    for name, method in METHODS.items():
        if hold.issuperset(method.needs):
            return name, tuple(str(check) for check in held if name in check.needed_by)
    return "none", tuple(f"{METHODS[name].title} lacks {check}" for name, why in failed.items() for check in why)


def _forbidding(method: type[Method], evidence: Evidence, held: Sequence[EvidenceCheck]) -> tuple[str, ...]:
    """What keeps a method from being trained even where the recipe forces it; nothing where it can."""
    if getattr(evidence, method.material) == 0:
        return (f"there are no {method.material_name} at all",)
    # Then prompts are trained on whose samples were scored, and no logged label.
    on_scores = method.forced_on_scores and evidence.scored_prompts > 0 and evidence.frontier_prompts == 0
    needs = () if on_scores else method.needs
    return tuple(str(check) for check in held if check.key == "coverage" and "coverage" in needs and not check.holds)


def _would_change(
    evidence: Evidence, held: Sequence[EvidenceCheck], method: Choice, groups: MethodCost | None
) -> Iterator[str]:
    for check in held:
        if not check.holds:
            yield f"{titles(check.needed_by)}: {_remedy(check, evidence, groups)}"
    names, hold = list(METHODS), {check.key for check in held if check.holds}
    after = 0 if method == "none" else names.index(method) + 1
    for other in names[after:]:
        if hold.issuperset(METHODS[other].needs):
            title = METHODS[other].title
            yield f"to {title}: it qualifies as well and gives way; selection.method: {other} forces it"
    if method != "none":
        near = min((c for c in held if c.holds and method in c.needed_by), key=_slack, default=None)
        if near is not None:
            yield f"away from {METHODS[method].title}: its closest call is {near}"


def _slack(check: EvidenceCheck) -> float:
    """The factor by which a check that holds exceeds its threshold."""
    bound = check.bound or 0.0
    over, under = (bound, check.threshold) if check.sign == ">=" else (check.threshold, bound)
    return over / under if under else math.inf


_COUNTED = {
    "frontier": "verifiable prompts on the frontier",
    "pairs": "pairs",
    "thumbs": "thumbs",
    "winners": "prompts whose fresh answers differ in score",
}


def _remedy(check: EvidenceCheck, evidence: Evidence, groups: MethodCost | None) -> str:
    """What would make a check hold, as a number of something that people can provide."""
    match check.key:
        case "coverage":
            traces = evidence.traces
            enough = bisect_left(range(traces), check.threshold, key=lambda labelled: labelled / traces)
            return f"labels for another {enough - evidence.labelled:,} of the {traces:,} traces"
        case "verifiable":
            for more in range(1, evidence.prompts - evidence.verifiable_prompts + 1):
                low = share(evidence.verifiable_prompts + more, evidence.prompts).low
                if (low or 0.0) >= check.threshold:
                    return f"references for another {more:,} of the {evidence.prompts:,} prompts"
            return f"more prompts: {evidence.prompts:,} are too few to tell, whatever their references"
        case "frontier" | "pairs" | "thumbs" | "winners":
            return _more(check, evidence, _COUNTED[check.key])
        case "rarer_thumb":
            return "thumbs of the rarer kind: people who were asked, not only those who complain or are glad"
        case "signal":
            return _signal(check)
        case "scorer":
            if not (names := " and ".join(evidence.scorers.names)):
                return "a scorer of fresh samples that is admitted: rewards.judge, rewards.custom, or a reward model"
            return f"scorers that bear each other out: what one of {names} takes for the best is no better to the other"
        case "zero_variance":
            return _larger_groups(check, evidence, groups)
        case "noise":
            return _cleaner(check, evidence)


def _signal(check: EvidenceCheck) -> str:
    if check.estimate.value is None:
        return "a reward model of the thumbs (rewards.reward_model): it tells whether they hold any signal"
    if check.estimate.value < 0.5:
        return "thumbs that mean what they say: a model of them orders those of other users the wrong way round"
    return f"thumbs of more users, or less noisy ones: {check.estimate.n:,} of users that it never saw are measured"


def _more(check: EvidenceCheck, evidence: Evidence, what: str) -> str:
    count = int(check.estimate.value or 0)
    missing = math.ceil(check.threshold) - count
    if not count:
        return f"{missing:,} {what}; this traffic gives none, so more of it will not help"
    traces = math.ceil(missing / count * evidence.traces)
    return f"another {missing:,} {what}: about {traces:,} more traces like these ({missing / count:.1f} x as many)"


def _larger_groups(check: EvidenceCheck, evidence: Evidence, groups: MethodCost | None) -> str:
    generations = (groups.num_generations or 1) * 2 if groups else MAX_GENERATIONS + 1
    while generations <= MAX_GENERATIONS:
        flat = zero_variance(evidence, generations)
        if flat.high is not None and flat.high <= check.threshold:
            return f"groups of {generations}: expected zero-variance share {check.figure(flat.high)} at most"
        generations *= 2
    if check.estimate.value is None:
        return "verified attempts at any prompt"
    return "prompts that this model answers neither always right nor always wrong"


def _cleaner(check: EvidenceCheck, evidence: Evidence) -> str:
    estimate, sources = check.estimate, evidence.noise_sources
    if not sources:
        return "pairs first: without any there is no noise to measure"
    unknown = [name for name, source in sources.items() if source.noise.value is None]
    if unknown or estimate.value is None or estimate.high is None:
        reviews = max(0, ENOUGH_REVIEWS - evidence.trust.human.n)
        return f"people's reviews of {reviews:,} more labels, or references where only {' and '.join(unknown)} spoke"
    width, room = estimate.high - estimate.value, check.threshold - estimate.value
    if width > NARROWER * room:
        worst = max(sources, key=lambda name: sources[name].share * (sources[name].noise.value or 0.0))
        excess = 100 * (estimate.high - check.threshold)
        part = f"{sources[worst].share:.0%} of them"
        return f"labels less noisy by {excess:.1f} points at worst; most of it is from {worst}, {part}"
    if "people" in sources:
        return "more pairs from as many labels, or fewer labels that people contradict: at worst, each sits in a pair"
    # The width of an interval falls with the root of its observations.
    audits = math.ceil(estimate.n * (width / room) ** 2)
    return f"about {audits:,} audited prompts instead of {estimate.n:,}, if the noise stays as it is"
