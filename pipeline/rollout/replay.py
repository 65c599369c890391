"""Live metrics from replayed production: the embedded default, for a deployment that has no metrics server.

Each look draws its own requests, lets the router choose the arm, serves both models and grades the answers. None is one
that the candidate learned from (unseen.py). A request may come again, in the same look and in the next: at temperature
1 each answer is a new draw, but of these prompts, not of new ones. Owns the draw and the sums. Refuses to grade: the
grader is the one that rewards and evaluation use, or the gate's judge where requests have no references (judged.py).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pipeline.rollout.evidence import ArmLook, LiveMetrics, LookRequest, UnitCounts
from pipeline.rollout.latency import Latencies
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

    def look(self, split: Split, request: LookRequest) -> LiveMetrics | None:
        """The replayed traffic stands for what production saw in the window. ValueError without requests.

        Each replayed request is a user of its own.
        """
        if not self.requests:
            raise ValueError(self.missing_reason or "There are no recorded requests to replay. Materialise the traces.")
        seed = int(digest_json([split.rollout, request.number])[:8], 16)
        drawn = random.Random(seed).choices(self.requests, k=self.count)
        shares: dict[Arm, dict[str, tuple[Messages, str]]] = {"champion": {}, "canary": {}}
        for number, each in enumerate(drawn):
            name = f"{request.number}/{number}"
            shares[route(split, name)][name] = each
        canary = split.canary
        if canary is None:
            return None
        return LiveMetrics(
            champion=self._serve(split.champion, shares["champion"], seed, request.slow_over_s),
            canary=self._serve(canary, shares["canary"], seed + 1, request.slow_over_s),
            window_start=request.since,
            window_end=request.now,
            graded_until=request.now,
        )

    def _serve(
        self, model: ModelRef, requests: dict[str, tuple[Messages, str]], seed: int, slow_over_s: float | None
    ) -> ArmLook:
        if not requests:
            return ArmLook(units={})
        sampling = self.sampling.model_copy(update={"seed": seed, "samples": 1})
        answers = [drawn[0] for drawn in self.sample(model, [prompt for prompt, _ in requests.values()], sampling)]
        answered = [
            AnsweredRequest(m, answer, ref) for (m, ref), answer in zip(requests.values(), answers, strict=True)
        ]
        outcomes = [grade.outcome for grade in self.grader(answered)]
        assert len(outcomes) == len(answered), "the grader grades every answer"
        units = {
            name: UnitCounts(
                requests=1,
                graded=outcome in GRADED,
                correct=outcome == "correct",
                errors=outcome == "no_answer",
                slow=slow_over_s is not None and answer.latency_s > slow_over_s,
            )
            for name, outcome, answer in zip(requests, outcomes, answers, strict=True)
        }
        waited = Counter(answer.latency_s for answer in answers)
        edges = tuple(sorted(waited))
        return ArmLook(units=units, latencies=Latencies(edges_s=edges, counts=tuple(waited[edge] for edge in edges)))
