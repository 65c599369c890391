"""Live metrics from replayed production: the embedded default, for a deployment that has no metrics server.

Each look draws its own requests, lets the router choose the arm, serves both models and grades the answers. None is one
that the candidate learned from (unseen.py). A request may come again, in the same look and in the next: at temperature
1 each answer is a new draw, but of these prompts, not of new ones. Owns the draw and the sums. Refuses to grade: the
grader is the one that rewards and evaluation use, or the gate's judge where requests have no references (judged.py).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pipeline.rollout.policy import ArmMetrics, LiveMetrics
from pipeline.rollout.router import Arm, Split, route
from pipeline.serving.inference import Answer, Messages, Sampling
from pipeline.serving.sample import Sampler
from pipeline.storage import ModelRef, digest_json


class Graded(Protocol):
    """A grade (pipeline.rewards.verifiers.Grade): only its outcome counts here."""

    @property
    def outcome(self) -> str: ...


class AnsweredRequest(NamedTuple):
    """A replayed request and its answer. `reference`: "" where there is none."""

    messages: Messages
    answer: Answer
    reference: str


Grader = Callable[[Sequence[AnsweredRequest]], Sequence[Graded]]
"""Grades answers, in order."""

GRADED = frozenset({"correct", "wrong", "no_answer"})
"""Outcomes that say something about the answer; the others are the reference's or the grader's trouble."""


@dataclass(frozen=True)
class ReplayedTraffic:
    """LiveMetricsPort over recorded requests: `count` of them a look, drawn with replacement.

    `sampling.seed` is replaced: looks are independent draws, and the same look of the same rollout is the same draw.
    """

    requests: Sequence[tuple[Messages, str]]
    sample: Sampler
    grader: Grader
    count: int
    sampling: Sampling
    missing_reason: str = ""
    """Why there are no requests."""

    def look(self, split: Split, look: int, since: float, now: float) -> LiveMetrics | None:
        """The replayed traffic stands for what production saw from `since` to `now`. ValueError without requests."""
        if not self.requests:
            raise ValueError(self.missing_reason or "There are no recorded requests to replay. Materialise the traces.")
        seed = int(digest_json([split.rollout, look])[:8], 16)
        drawn = random.Random(seed).choices(self.requests, k=self.count)
        shares: dict[Arm, list[tuple[Messages, str]]] = {"champion": [], "canary": []}
        for number, request in enumerate(drawn):
            shares[route(split, f"{look}/{number}")].append(request)
        canary = split.canary
        if canary is None:
            return None
        return LiveMetrics(
            champion=self._serve(split.champion, shares["champion"], seed),
            canary=self._serve(canary, shares["canary"], seed + 1),
            window_start=since,
            window_end=now,
        )

    def _serve(self, model: ModelRef, requests: list[tuple[Messages, str]], seed: int) -> ArmMetrics:
        if not requests:
            return ArmMetrics()
        sampling = self.sampling.model_copy(update={"seed": seed, "samples": 1})
        answers = [drawn[0] for drawn in self.sample(model, [prompt for prompt, _ in requests], sampling)]
        answered = [AnsweredRequest(m, answer, ref) for (m, ref), answer in zip(requests, answers, strict=True)]
        outcomes = [grade.outcome for grade in self.grader(answered)]
        assert len(outcomes) == len(answered), "the grader grades every answer"
        return ArmMetrics(
            requests=len(outcomes),
            graded=sum(outcome in GRADED for outcome in outcomes),
            correct=outcomes.count("correct"),
            errors=outcomes.count("no_answer"),
            latency_p50_s=_quantile(answers, 0.5),
            latency_p99_s=_quantile(answers, 0.99),
        )


def _quantile(answers: list[Answer], share: float) -> float:
    """Nearest rank: always a latency that somebody waited."""
    latencies = sorted(answer.latency_s for answer in answers)
    return latencies[math.ceil(share * len(latencies)) - 1]
