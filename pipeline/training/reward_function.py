"""The pipeline's own composite as the trainers' reward function: the same verdicts and sums as for logged traces.

Owns what a batch of fresh completions is worth, and what it says of the policy's health. A completion whose check
failed has no reward: None leaves it out of its group.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from pipeline.recipe import Rewards
from pipeline.recipe.rewards import VerifierKind
from pipeline.rewards.composite import Reward, score_fresh
from pipeline.rewards.custom import CustomScorer, CustomTask
from pipeline.rewards.records import COMPONENTS, Finding
from pipeline.rewards.verifiers import Grader, VerifierTask
from pipeline.training.texts import completion_statistics

Messages = list[dict[str, str]]


class FreshCompletion(NamedTuple):
    """A completion of the policy to a prompt with a reference. `prompt`: chat messages as JSON."""

    check: VerifierTask
    prompt: str


class RewardFunction:
    """Called by TRL with a batch's completions and the columns of its rows; returns a reward for each, or None.

    `custom`: the user's own function, where the weights of `verified` name it.
    """

    __name__ = "composite"  # TRL names a metric after it

    def __init__(self, settings: Rewards, check: Grader, custom: CustomScorer | None = None) -> None:
        self._settings, self._check, self._custom = settings, check, custom
        self._known: dict[FreshCompletion, Reward] = {}
        self.last: list[float | None] = []
        """The rewards of the last batch that was asked for."""

    def rewards(self, completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Of one completion for each row of the plan; None where the check could not tell."""
        fresh = [
            FreshCompletion(VerifierTask(text, row["reference"], row["verifier"]), _as_json(row["prompt"]))
            for text, row in zip(completions, rows, strict=True)
        ]
        return [reward.final_reward for reward in self.score(fresh)]

    def score(self, completions: Sequence[FreshCompletion]) -> list[Reward]:
        """Rewards of completions, remembered until the next batch: dynamic sampling looks before TRL does."""
        new = [fresh for fresh in dict.fromkeys(completions) if fresh not in self._known]
        if new:
            grades, others = self._check([fresh.check for fresh in new]), self._others(new)
            self._known |= {
                fresh: score_fresh(fresh.check, grade, self._settings, findings)
                for fresh, grade, findings in zip(new, grades, others, strict=True)
            }
        return [self._known[fresh] for fresh in completions]

    def _others(self, completions: Sequence[FreshCompletion]) -> list[dict[str, Finding]]:
        """What scorers beside verifier and rules make of each completion."""
        if self._custom is None:
            return [{} for _ in completions]
        tasks = [CustomTask(prompt, check.completion, check.reference) for check, prompt in completions]
        return [{"custom": score.finding} for score in self._custom(tasks)]

    def __call__(
        self,
        completions: Sequence[Messages],
        reference: Sequence[str],
        verifier: Sequence[VerifierKind],
        prompts: Sequence[Messages] = (),
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        texts = [messages[-1]["content"] for messages in completions]
        checks = [VerifierTask(*each) for each in zip(texts, reference, verifier, strict=True)]
        asked_for = [_as_json(prompt) for prompt in prompts] or [""] * len(checks)
        rewards = self.score([FreshCompletion(*each) for each in zip(checks, asked_for, strict=True)])
        self._known = {}
        if log_metric is not None:
            asked = [str(prompt) for prompt in prompts] or [""] * len(texts)
            for name, value in {**reward_statistics(rewards), **completion_statistics(texts, asked)}.items():
                log_metric(name, value)
        self.last = [reward.final_reward for reward in rewards]
        return self.last


def _as_json(prompt: Messages) -> str:
    """As the label table holds prompts."""
    return json.dumps(prompt, ensure_ascii=False)


def reward_statistics(rewards: Sequence[Reward]) -> dict[str, float]:
    """Metrics of a batch's rewards: accuracy, the share without a reward, and what their variance comes from.

    `component/<name>` is the covariance of a component's contribution with the reward over the reward's variance: these
    sum to 1. A policy that learns to break its checks shows in `abstained` first.
    """
    right = [value for reward in rewards if (value := reward.findings["correct"].value) is not None]
    metrics = {"abstained": fmean(reward.final_reward is None for reward in rewards)}
    if right:
        metrics["accuracy"] = fmean(right)
    scored = [reward for reward in rewards if reward.final_reward is not None]
    totals = [reward.final_reward or 0.0 for reward in scored]
    variance = _covariance(totals, totals)
    if variance > 1e-12:
        for name in COMPONENTS:
            parts = [_contribution(reward, name) for reward in scored]
            if any(parts):
                metrics[f"component/{name}"] = _covariance(parts, totals) / variance
    return metrics


def _contribution(reward: Reward, name: str) -> float:
    weights: Mapping[str, float] = reward.weights
    return weights.get(name, 0.0) * (reward.findings[name].value or 0.0)


def _covariance(first: Sequence[float], second: Sequence[float]) -> float:
    if not first:
        return 0.0
    mean_first, mean_second = fmean(first), fmean(second)
    return fmean((a - mean_first) * (b - mean_second) for a, b in zip(first, second, strict=True))
