"""Rewards of production's answers while a rollout watches: what verifier, rules and users say, composed as labels are.

Asks no judge and runs no function of the recipe: an answer that only those could grade has no grade here, and is not
waited for. A user's caps and repeated questions need a whole window of traces and are left to the labels of an
iteration.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from statistics import fmean
from typing import Any

from pipeline.core.storage import digest_json
from pipeline.recipe.rewards import Feedback, Rewards
from pipeline.recipe.section import Operational
from pipeline.recipe.section import settings as own_settings
from pipeline.rewards.composite import compose, verified
from pipeline.rewards.records import DOES_NOT_APPLY, Finding
from pipeline.rewards.rules import measure
from pipeline.rewards.samples import UNKNOWN, RewardSample
from pipeline.rewards.verifiers import VERSION, Grade, Outcome, VerifierTask
from pipeline.rewards.verifiers.grading import grader_of

NO_SIGNAL = "no_signal"
"""Reason of an answer that nothing here can grade."""

Label = Callable[[Sequence[RewardSample]], Sequence[Finding]]
"""The reward of each answer, in order, or the reason why there is none (yet)."""


def label_digest_of(settings: Rewards) -> str:
    """Of all that decides a grade: the recipe's rewards and the verifiers."""
    return digest_json([own_settings(settings, Operational), VERSION])


def composed(settings: Rewards) -> Label:
    """Grades by the recipe's rewards. An answer without a reference and without feedback has no signal: rules alone
    say nothing of its quality."""

    def label(held: Sequence[RewardSample]) -> list[Finding]:
        checked = [sample for sample in held if sample.reference and not sample.unscored]
        known = [sample for sample in checked if sample.kind != UNKNOWN]
        with closing(grader_of(settings.verifier)) as check:
            grades = iter(check([_task(sample) for sample in known]) if known else [])
        of = {id(sample): next(grades) if sample.kind != UNKNOWN else Grade(Outcome.error, "") for sample in checked}
        return [_reward(sample, of.get(id(sample)), settings) for sample in held]

    return label


def _task(sample: RewardSample) -> VerifierTask:
    kind: Any = sample.kind
    return VerifierTask(sample.completion, sample.reference or "", kind)


def _reward(sample: RewardSample, grade: Grade | None, settings: Rewards) -> Finding:
    if sample.unscored:
        return Finding(None, NO_SIGNAL)
    findings = {"feedback": sample.feedback}
    if grade is not None:
        findings |= verified(_task(sample), grade, settings, sample.latency_s)
    elif sample.feedback.value is None:
        return Finding(None, NO_SIGNAL)
    else:
        findings |= measure(sample.completion, None, sample.latency_s, settings.rules)
    reward = compose(findings, sample.profile, settings)
    return Finding(None, reward.reason) if reward.final_reward is None else Finding(reward.final_reward)


def rated(feedback: Sequence[Mapping[str, Any]], settings: Feedback) -> Finding:
    """What users said of an answer, as the posterior mean of their scores: those of one name are one answer."""
    answers = user_scores(feedback, settings)
    if not answers:
        return DOES_NOT_APPLY
    strength = settings.prior_strength
    return Finding((sum(answers) + 0.5 * strength) / (len(answers) + strength))


def user_scores(feedback: Sequence[Mapping[str, Any]], settings: Feedback) -> list[float]:
    """What users said of an answer, a mean for each name of a score; questions asked again are none."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for score in feedback:
        value = score["value"]
        if value is not None and score["name"] != settings.retry_name:
            by_name[score["name"]].append(value)
    return [fmean(values) for values in by_name.values()]
