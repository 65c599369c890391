"""Whether a reward model's word counts: by its thumbs, its users, the AUC on held-out users and every probe.

An AUC under one half is a finding; the scores are never inverted.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.core.estimate import Estimate
from pipeline.recipe.reward_model import RewardModelSettings
from pipeline.recipe.rewards import Weights
from pipeline.rewards.reward_model.records import ProbeResult, RewardModelReport, ThumbCounts


def objections(
    settings: RewardModelSettings, counts: ThumbCounts, auc: Estimate, probes: Sequence[ProbeResult]
) -> tuple[str, ...]:
    """The figures of the rule that do not hold, in words; none for a model to admit."""
    against: list[str] = []
    if counts.thumbs < settings.min_thumbs:
        missing = settings.min_thumbs - counts.thumbs
        against.append(f"{counts.thumbs:,} thumbs, {settings.min_thumbs:,} are needed: {missing:,} are missing")
    if counts.users < settings.min_users:
        missing = settings.min_users - counts.users
        against.append(f"{counts.users:,} users, {settings.min_users:,} are needed: {missing:,} are missing")
    if auc.low is None or auc.low < settings.min_auc:
        against.append(f"AUC on held-out users' thumbs {auc}; its lower bound has to reach {settings.min_auc:.2f}")
    if auc.value is not None and auc.value < 0.5:
        against.append(
            f"AUC {auc.value:.2f} is below one half: it orders thumbs the wrong way round, as flipped or random thumbs "
            "do. Look at the thumbs; the scores are not inverted"
        )
    if not probes:
        against.append("no probe was asked: write the policy as rewards.reward_model.probes")
    against += [
        f"probe {probe.name}: {probe.ordered_right} of the pairs are ordered right; the lower bound has to reach "
        f"{settings.min_probe:.2f}"
        for probe in probes
        if not probe.passes
    ]
    return tuple(against)


def counts_beside(report: RewardModelReport, weights: Weights) -> bool:
    """Whether the model's word enters a reward of these weights: it is admitted, or it lacks nothing but probes and
    another scorer, which may see what it does not, has a weight too."""
    covered = any(getattr(weights, name) > 0 for name in ("judge", "custom"))
    return report.admitted or (covered and 0 < len(report.reasons) == len(report.failed_probes))


def probe_result(settings: RewardModelSettings, name: str, kind: str, ordered_right: Estimate) -> ProbeResult:
    passes = ordered_right.low is not None and ordered_right.low >= settings.min_probe
    return ProbeResult(name=name, kind=kind, ordered_right=ordered_right, passes=passes)
