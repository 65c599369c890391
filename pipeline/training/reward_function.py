"""The pipeline's own composite as the trainers' reward function. A completion whose check failed, or that a scorer
could not speak of, has no reward: None leaves it out of its group."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import covariance, fmean
from typing import Any

from pipeline.core.conversation import in_one_form, to_prompt
from pipeline.recipe import Rewards
from pipeline.recipe.rewards import VerifierKind
from pipeline.rewards.composite import Reward, compose, measure, verified
from pipeline.rewards.custom import CustomScorer, CustomTask
from pipeline.rewards.records import COMPONENTS, DOES_NOT_APPLY, Finding
from pipeline.rewards.verifiers import Grader, VerifierTask
from pipeline.training.scorers import FreshAnswer, FreshScores
from pipeline.training.texts import completion_statistics

Messages = list[dict[str, str]]


UNENDED_REWARD = Reward(0.0, "", "fresh", {}, dict.fromkeys(COMPONENTS, DOES_NOT_APPLY))
"""No scorer has seen the like of an answer that was cut, and a policy would learn never to end."""


class RewardFunction:
    """Called by TRL with a batch's completions and the columns of its rows; returns a reward for each, or None.
    `custom`: the user's own function, where the weights of `verified` name it. `scores`: of completions that no
    reference can check. `stops`: ids of the tokens that end a completion. `metadata`: of the rows, by prompt."""

    __name__ = "composite"  # TRL names a metric after it

    def __init__(
        self,
        settings: Rewards,
        check: Grader,
        custom: CustomScorer | None = None,
        scores: FreshScores | None = None,
        stops: Collection[int] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._settings, self._check, self._custom = settings, check, custom
        self._metadata = metadata or {}
        self._scores, self._stops = scores, frozenset(stops)

    def __call__(
        self,
        prompts: Sequence[Messages],
        completions: Sequence[Messages],
        completion_ids: Sequence[Sequence[int]],
        reference: Sequence[str | None],
        verifier: Sequence[VerifierKind | None],
        log_metric: Callable[[str, float], None],
        **_: Any,
    ) -> list[float | None]:
        texts = [in_one_form(drawn[-1]["content"], asked) for drawn, asked in zip(completions, prompts, strict=True)]
        answers: list[FreshAnswer] = []
        for asked, text, ids, gold, kind in zip(prompts, texts, completion_ids, reference, verifier, strict=True):
            if gold is not None and kind is not None:
                answers.append(FreshAnswer(to_prompt(asked), text, True, VerifierTask(text, gold, kind)))
            else:
                answers.append(FreshAnswer(to_prompt(asked), text, bool(ids) and ids[-1] in self._stops))
        rewards = self._score(answers)
        statistics = {**reward_statistics(rewards), **completion_statistics(texts, [str(asked) for asked in prompts])}
        for name, value in statistics.items():
            log_metric(name, value)
        return [reward.final_reward for reward in rewards]

    def _score(self, completions: Sequence[FreshAnswer]) -> list[Reward]:
        """Rewards of completions; equal ones are asked about once."""
        known = {each: UNENDED_REWARD for each in completions if each.check is None and not each.ended}
        if checks := {each: each.check for each in completions if each.check is not None}:
            known |= self._checked(checks)
        if ended := list(dict.fromkeys(each for each in completions if each.check is None and each.ended)):
            assert self._scores is not None, "a plan of such rows names its scorers"
            for each, findings in zip(ended, self._scores.rewarding(ended), strict=True):
                measured = measure(each.text, None, None, self._settings.rules)
                known[each] = compose({**measured, **findings}, "fresh", self._settings, 1.0)
        return [known[each] for each in completions]

    def _checked(self, checks: Mapping[FreshAnswer, VerifierTask]) -> dict[FreshAnswer, Reward]:
        """Of completions with a reference."""
        others = [dict[str, Finding]() for _ in checks]
        if self._custom is not None:
            tasks = [
                CustomTask(each.prompt, check.completion, check.reference, self._metadata.get(each.prompt, "{}"))
                for each, check in checks.items()
            ]
            others = [{"custom": score.finding} for score in self._custom(tasks)]
        grades = self._check(list(checks.values()))
        return {
            fresh: compose({**verified(check, grade, self._settings), **findings}, "verified", self._settings)
            for (fresh, check), grade, findings in zip(checks.items(), grades, others, strict=True)
        }


def reward_statistics(rewards: Sequence[Reward]) -> dict[str, float]:
    """Metrics of a batch's rewards: accuracy, the share without a reward and why, and what their variance comes from.
    `component/<name>` is the covariance of a component's contribution with the reward over the reward's variance: these
    sum to 1. A policy that learns to break its checks shows in `abstained` first."""
    right = [value for reward in rewards if (value := reward.findings["correct"].value) is not None]
    metrics = {"abstained": fmean(reward.final_reward is None for reward in rewards)}
    silent = Counter(reward.reason for reward in rewards if reward.final_reward is None)
    metrics |= {f"abstained/{reason}": count / len(rewards) for reason, count in silent.items()}
    if right:
        metrics["accuracy"] = fmean(right)
    scored = [reward for reward in rewards if reward.final_reward is not None]
    totals = [reward.final_reward or 0.0 for reward in scored]
    if len(totals) > 1 and (variance := covariance(totals, totals)) > 1e-12:
        for name in COMPONENTS:
            parts = [reward.weights.get(name, 0.0) * (reward.findings[name].value or 0.0) for reward in scored]
            if any(parts):
                metrics[f"component/{name}"] = covariance(parts, totals) / variance
    return metrics
