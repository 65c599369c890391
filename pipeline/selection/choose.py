"""The rule: GRPO, DPO, SFT, KTO, or no training, from the evidence and the recipe's thresholds, one check each.
docs/selection.md gives its reasons. Every estimate counts by the end of its interval that speaks against the method."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pipeline.core.estimate import Estimate
from pipeline.core.storage import Record
from pipeline.recipe import Selection
from pipeline.recipe.method import EvidenceKey
from pipeline.recipe.methods import METHODS, Method, MethodName
from pipeline.selection.cost import zero_variance
from pipeline.selection.evidence import Evidence

Sign = Literal[">=", "<="]
GROUP_SIZE = 8
"""Completions of a prompt that are compared with each other, where no settings say another number."""
COUNTS: tuple[EvidenceKey, ...] = ("frontier", "pairs", "thumbs", "winners")
"""The evidence that is a number of something; the rest are shares, but for `signal`, which is an area."""
_EXACT: tuple[EvidenceKey, ...] = ("coverage", *COUNTS)
_UNKNOWN_WITHOUT: dict[EvidenceKey, str] = {
    "noise": "reviews",
    "rarer_thumb": "thumbs",
    "signal": "rewards.reward_model",
    "scorer": "a scorer that is admitted",
}


class EvidenceCheck(Record):
    key: EvidenceKey
    needed_by: tuple[MethodName, ...]
    name: str
    estimate: Estimate
    exact: bool
    sign: Sign
    threshold: float
    holds: bool

    def figure(self, value: float | None) -> str:
        if self.key == "signal":
            return f"{value:.2f}"
        return f"{value:,.0f}" if self.key in COUNTS else f"{value:.1%}"

    def interval(self) -> str:
        """What was found, for people: a census as it is, an estimate with its interval."""
        if self.exact:
            return self.figure(self.estimate.value)
        return str(self.estimate) if self.key == "signal" and self.estimate.n else percentages(self.estimate)

    def __str__(self) -> str:
        needs = f"{self.sign} {self.figure(self.threshold)}"
        if self.estimate.value is None:
            what = _UNKNOWN_WITHOUT.get(self.key, "verified attempts")
            return f"{self.name} unknown: n={self.estimate.n:,}, needs {what} ({needs})"
        bound = "" if self.exact else f"{'lower' if self.sign == '>=' else 'upper'} bound "
        return f"{self.name}: {self.interval()}, {'' if self.holds else 'needs '}{bound}{needs}"


def percentages(share: Estimate) -> str:
    if share.value is None:
        return f"unknown (n={share.n:,})"
    if share.n == 0:
        return f"{share.value:.1%} (assumed, n=0)"
    return f"{share.value:.1%} ({share.low:.1%} to {share.high:.1%}, n={share.n:,})"


def checks(
    evidence: Evidence, thresholds: Selection, min_coverage: float, group_size: int = GROUP_SIZE
) -> tuple[EvidenceCheck, ...]:
    """Every check of the rule. `group_size`: of the groups that will be drawn, for the check of zero variance."""
    flat, groups = zero_variance(evidence, group_size), f"expected zero-variance share of groups of {group_size}"
    verifiable, noise = evidence.verifiable_share, evidence.label_noise
    imports = evidence.noise_sources.get("imports")
    declared = ", of imports as declared" if imports is not None and not imports.noise.n else ""
    return (
        _check("coverage", "label coverage", _exact(evidence.coverage), ">=", min_coverage),
        _check("verifiable", "verifiable share of prompts", verifiable, ">=", thresholds.min_verifiable_share),
        _check("frontier", "prompts on the frontier", _exact(evidence.frontier_prompts), ">=", thresholds.min_prompts),
        _check("zero_variance", groups, flat, "<=", thresholds.max_zero_variance_share),
        _check("pairs", "preference pairs", _exact(evidence.pairs), ">=", thresholds.min_pairs),
        _check("noise", f"label noise of the pairs{declared}", noise, "<=", thresholds.max_label_noise),
        *_of_unpaired(evidence, thresholds),
    )


def _of_unpaired(evidence: Evidence, thresholds: Selection) -> Iterator[EvidenceCheck]:
    """Checks of thumbs and winners, where there are any or a method was forced that needs them. Where the table has
    nothing but imports, what a person declared of them takes the place of a measure."""
    forced = () if thresholds.method == "auto" else METHODS[thresholds.method].needs
    if evidence.thumbs or "thumbs" in forced:
        rarer = evidence.rarer_thumb
        yield _check("thumbs", "thumbs", _exact(evidence.thumbs), ">=", thresholds.min_thumbs)
        yield _check("rarer_thumb", "share of the rarer thumb", rarer, ">=", thresholds.min_rarer_thumb)
        auc = evidence.scorers.feedback_auc
        if evidence.thumbs and evidence.imported_thumbs == evidence.thumbs:
            yield _check("signal", "thumbs, all of imports, as declared", DECLARED, ">=", 1.0)
        else:
            yield _check("signal", "AUC on the thumbs of unseen users", auc, ">=", thresholds.min_feedback_auc)
    if evidence.winners or "winners" in forced:
        name = "best of k, and demonstrations" if evidence.demonstrations else "best of k"
        yield _check("winners", name, _exact(evidence.winners), ">=", thresholds.min_winners)
        names = evidence.scorers.names
        if evidence.winners and evidence.demonstrations == evidence.winners:
            yield _check("scorer", "best answers, all demonstrations, as declared", DECLARED, ">=", 1.0)
        elif len(names) == 1:  # it is taken at its admission
            yield _check("scorer", f"admission of the only scorer, {names[0]}", _exact(1.0), ">=", 1.0)
        else:
            name = "gain of the best of k, as another scorer sees it"
            yield _check("scorer", name, evidence.scorers.gain, ">=", thresholds.min_best_gain)


def _exact(figure: float) -> Estimate:
    return Estimate(value=figure, low=figure, high=figure, n=0)


DECLARED = _exact(1.0)
"""What a person says of imports is not measured."""


def _check(key: EvidenceKey, name: str, estimate: Estimate, sign: Sign, threshold: float) -> EvidenceCheck:
    needed_by: tuple[MethodName, ...] = tuple(name for name, method in METHODS.items() if key in method.needs)
    return EvidenceCheck(
        key=key, needed_by=needed_by, name=name, estimate=estimate, exact=key in _EXACT, sign=sign,
        threshold=threshold, holds=_holds(estimate, sign, threshold),
    )  # fmt: skip


def _holds(estimate: Estimate, sign: Sign, threshold: float) -> bool:
    """Whether the bound that speaks against the estimate reaches the threshold. One that is unknown does not."""
    if sign == ">=":
        return estimate.low is not None and estimate.low >= threshold
    return estimate.high is not None and estimate.high <= threshold


Choice = Literal[MethodName, "none"]


class MethodDecision(Record):
    """The method and its grounds. `lacks`: by method that does not qualify."""

    method: Choice
    forced: bool
    reasons: tuple[str, ...]
    lacks: dict[MethodName, tuple[str, ...]]
    checks: tuple[EvidenceCheck, ...]
    evidence: Evidence
    thresholds: Selection

    @property
    def forceable(self) -> tuple[MethodName, ...]:
        """The methods that would be trained on this evidence if the recipe forced them."""
        return tuple(name for name, each in METHODS.items() if not _forbidding(each, self.evidence, self.checks))


def choose(
    evidence: Evidence, thresholds: Selection, min_coverage: float, group_size: int = GROUP_SIZE
) -> MethodDecision:
    held = checks(evidence, thresholds, min_coverage, group_size)
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
    if evidence.scored_prompts and not evidence.frontier_prompts:  # samples that were scored are trained on, no label
        return ()
    coverage = (check for check in held if check.key == "coverage" and "coverage" in method.needs)
    return tuple(str(check) for check in coverage if not check.holds)
