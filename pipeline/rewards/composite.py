"""`final_reward`: one number in [0, 1] from the components that apply, or null with a reason (docs/rewards.md). A
component that should have a value and has none is not one that does not apply; a label that failed is never 0."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from pipeline.recipe.rewards import Rewards, Weights
from pipeline.recipe.sources import MODELS
from pipeline.rewards.records import ABSENT, COMPONENTS, DOES_NOT_APPLY, Finding
from pipeline.rewards.rules import measure
from pipeline.rewards.verifiers import Grade, VerifierTask

Profile = Literal["verified", "rated", "judged", "fresh", "imported", "demonstrated"]


class Reward(NamedTuple):
    """One composed reward, and how it came to be."""

    final_reward: float | None
    reason: str
    """'' for a label; else `no_signal`, or the reason of the heaviest component that could not speak."""
    profile: Profile
    weights: dict[str, float]
    """Of the components with a value; they sum to 1, or there are none."""
    findings: dict[str, Finding]

    @property
    def missing(self) -> dict[str, str]:
        """Component to reason, of those that should have spoken."""
        silent = {name: finding.reason for name, finding in self.findings.items() if finding.value is None}
        return {name: reason for name, reason in silent.items() if reason != ABSENT}


def profile_of(reference: str | None, rated: bool, fresh: bool, imported: Profile | None = None) -> Profile:
    """Which weights a completion is scored by. `rated`: it has feedback that counts; `fresh`: it was drawn just now;
    `imported`: the profile of an import's, which brings its reward."""
    if imported:
        return imported
    if reference:
        return "verified"
    if fresh:
        return "fresh"
    return "rated" if rated else "judged"


def weights_of(profile: Profile, settings: Rewards) -> Weights:
    """An import's row brings its reward: nothing else is weighed."""
    return Weights() if profile in MODELS else getattr(settings, profile)


def compose(
    findings: Mapping[str, Finding], profile: Profile, settings: Rewards, min_weight: float = Rewards.min_weight
) -> Reward:
    """The reward of one completion. A component that is not in `findings` does not apply. `given` in it is an import's
    reward, which is taken as it stands."""
    all_findings = {name: findings.get(name, DOES_NOT_APPLY) for name in COMPONENTS}
    if profile in MODELS:
        return Reward(findings["given"].value, "", profile, {"given": 1.0}, all_findings)
    weights = weights_of(profile, settings)
    wanted = {name: weight for name in COMPONENTS if (weight := getattr(weights, name)) > 0}
    applying = {name: weight for name, weight in wanted.items() if all_findings[name].reason != ABSENT}
    values = {name: value for name in applying if (value := all_findings[name].value) is not None}
    spoke = sum(applying[name] for name in values)
    if spoke == 0 or spoke < min_weight * sum(applying.values()):
        silent = sorted((name for name in applying if name not in values), key=lambda name: -applying[name])
        return Reward(None, all_findings[silent[0]].reason if silent else "no_signal", profile, {}, all_findings)
    heaviest = max(applying[name] for name in values)  # divided by it, no product of a small weight is lost
    relative = {name: applying[name] / heaviest for name in values}
    whole = sum(relative.values())
    total = sum(relative[name] * value for name, value in values.items()) / whole
    shares = {name: weight / whole for name, weight in relative.items()}
    return Reward(total, "", profile, shares, all_findings)


def verified(
    check: VerifierTask, grade: Grade, settings: Rewards, latency_s: float | None = None
) -> dict[str, Finding]:
    """What verifier and rules say of a completion with a reference: all of it can be said of a fresh one."""
    score = grade.outcome.score
    correct = Finding(None, grade.outcome.value) if score is None else Finding(score)
    return {"correct": correct, **measure(check.completion, check.kind, latency_s, settings.rules)}
