"""The evidence held against the recipe's thresholds, one check each, and how a person reads it."""

from collections.abc import Iterator
from typing import Literal

from pipeline.core.estimate import Estimate
from pipeline.core.storage import Record
from pipeline.recipe import Selection
from pipeline.recipe.method import EvidenceKey
from pipeline.recipe.methods import METHODS, MethodName
from pipeline.selection.cost import MethodCost
from pipeline.selection.evidence import Evidence

Sign = Literal[">=", "<="]
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

    @property
    def bound(self) -> float | None:
        """The end of the interval that speaks against the method."""
        return self.estimate.low if self.sign == ">=" else self.estimate.high

    def figure(self, value: float) -> str:
        if self.key == "signal":
            return f"{value:.2f}"
        return f"{value:,.0f}" if self.key in COUNTS else f"{100 * value:.1f}%"

    def interval(self) -> str:
        """What was found, for people: a census as it is, an estimate with its interval."""
        if self.exact and self.estimate.value is not None:
            return self.figure(self.estimate.value)
        return str(self.estimate) if self.key == "signal" else percentages(self.estimate)

    def __str__(self) -> str:
        needs = f"{self.sign} {self.figure(self.threshold)}"
        if self.estimate.value is None:
            what = _UNKNOWN_WITHOUT.get(self.key, "verified attempts")
            return f"{self.name} unknown: n={self.estimate.n:,}, needs {what} ({needs})"
        bound = "" if self.exact else f"{'lower' if self.sign == '>=' else 'upper'} bound "
        return f"{self.name}: {self.interval()}, {'' if self.holds else 'needs '}{bound}{needs}"


def percentages(share: Estimate) -> str:
    if share.value is None or share.low is None or share.high is None:
        return f"unknown (n={share.n:,})"
    if share.n == 0:
        return f"{share.value:.1%} (assumed, n=0)"
    return f"{share.value:.1%} ({share.low:.1%} to {share.high:.1%}, n={share.n:,})"


def checks(
    evidence: Evidence, thresholds: Selection, min_coverage: float, groups_cost: MethodCost | None = None
) -> tuple[EvidenceCheck, ...]:
    """Every check of the rule. `groups_cost`: of the groups that will be drawn, for the check of zero variance."""
    flat, groups = evidence.zero_variance_share, "zero-variance share of the logged groups"
    if groups_cost is not None:
        flat = groups_cost.zero_variance_share
        groups = f"expected zero-variance share of groups of {groups_cost.num_generations}"
    verifiable, noise = evidence.verifiable_share, evidence.label_noise
    return (
        _check("coverage", "label coverage", _exact(evidence.coverage), ">=", min_coverage),
        _check("verifiable", "verifiable share of prompts", verifiable, ">=", thresholds.min_verifiable_share),
        _check("frontier", "prompts on the frontier", _exact(evidence.frontier_prompts), ">=", thresholds.min_prompts),
        _check("zero_variance", groups, flat, "<=", thresholds.max_zero_variance_share),
        _check("pairs", "preference pairs", _exact(evidence.pairs), ">=", thresholds.min_pairs),
        _check("noise", "label noise of the pairs", noise, "<=", thresholds.max_label_noise),
        *_of_unpaired(evidence, thresholds),
    )


def _of_unpaired(evidence: Evidence, thresholds: Selection) -> Iterator[EvidenceCheck]:
    """Checks of thumbs and winners, where there are any or a method was forced that needs them."""
    forced = () if thresholds.method == "auto" else METHODS[thresholds.method].needs
    if evidence.thumbs or "thumbs" in forced:
        rarer = evidence.rarer_thumb
        yield _check("thumbs", "thumbs", _exact(evidence.thumbs), ">=", thresholds.min_thumbs)
        yield _check("rarer_thumb", "share of the rarer thumb", rarer, ">=", thresholds.min_rarer_thumb)
        auc = evidence.scorers.feedback_auc
        yield _check("signal", "AUC on the thumbs of unseen users", auc, ">=", thresholds.min_feedback_auc)
    if evidence.winners or "winners" in forced:
        yield _check("winners", "best of k", _exact(evidence.winners), ">=", thresholds.min_winners)
        names = evidence.scorers.names
        if len(names) == 1:  # it is taken at its admission
            yield _check("scorer", f"admission of the only scorer, {names[0]}", _exact(1.0), ">=", 1.0)
        else:
            name = "gain of the best of k, as another scorer sees it"
            yield _check("scorer", name, evidence.scorers.gain, ">=", thresholds.min_best_gain)


def _exact(figure: float) -> Estimate:
    return Estimate(value=figure, low=figure, high=figure, n=0)


def _check(key: EvidenceKey, name: str, estimate: Estimate, sign: Sign, threshold: float) -> EvidenceCheck:
    needed_by: tuple[MethodName, ...] = tuple(name for name, method in METHODS.items() if key in method.needs)
    bound = estimate.low if sign == ">=" else estimate.high
    holds = bound is not None and (bound >= threshold if sign == ">=" else bound <= threshold)
    return EvidenceCheck(
        key=key, needed_by=needed_by, name=name, estimate=estimate, exact=key in _EXACT, sign=sign,
        threshold=threshold, holds=holds,
    )  # fmt: skip
