"""Sampling as the demo's traffic and the fingerprints of models call it: prompts in, completions out.

Owns the plain call over the port of inference.py. Refuses to keep an answer: who asks again is answered again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pipeline.recipe.serving import TransformersServing
from pipeline.serving.inference import Answer, AnswerRequest, InferenceEngine, Messages, Sampling, answer_seed
from pipeline.serving.transformers_engine import TransformersEngine
from pipeline.storage import ModelRef


class Sampler(Protocol):
    """Draws `sampling.samples` answers to each prompt; the outer list follows the prompts."""

    def __call__(self, model: ModelRef, prompts: Sequence[Messages], sampling: Sampling) -> list[list[Answer]]: ...


def sampler(log: Callable[[str], None] = print) -> Sampler:
    """A sampler over transformers; it raises what a session does."""
    return over(TransformersEngine(TransformersServing(), log))


def over(engine: InferenceEngine) -> Sampler:
    """A sampler over an engine. Equal prompts at different places get different answers."""

    def sample(model: ModelRef, prompts: Sequence[Messages], sampling: Sampling) -> list[list[Answer]]:
        requests = [
            AnswerRequest(key=f"{place}/{n}", messages=messages, seed=answer_seed(sampling.seed, str(place), n))
            for place, messages in enumerate(prompts)
            for n in range(sampling.samples)
        ]
        answers: dict[str, Answer] = {}
        if requests:
            with engine.open("model", model) as session:
                session.answer(requests, sampling, lambda answer: answers.update({answer.key: answer}))
        return [[answers[f"{place}/{n}"] for n in range(sampling.samples)] for place in range(len(prompts))]

    return sample
