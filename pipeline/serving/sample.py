"""Prompts in, completions out, for the demo's traffic and the fingerprints of models. Answers are not kept."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

from pipeline.core.storage import ModelRef
from pipeline.recipe.serving import TransformersServing
from pipeline.serving.inference import (
    Answer,
    AnswerRequest,
    InferenceEngine,
    InferenceSession,
    Messages,
    Sampling,
    answer_seed,
)
from pipeline.serving.transformers_engine import TransformersEngine


class Sampler(Protocol):
    """Draws `sampling.samples` answers to each prompt; the outer list follows the prompts."""

    def __call__(self, model: ModelRef, prompts: Sequence[Messages], sampling: Sampling) -> list[list[Answer]]: ...


@contextmanager
def sampler(log: Callable[[str], None] = print) -> Generator[Sampler]:
    """A sampler over transformers; it raises what a session does."""
    with over(TransformersEngine(TransformersServing(), log)) as sample:
        yield sample


@contextmanager
def over(engine: InferenceEngine) -> Generator[Sampler]:
    """A sampler over an engine. Equal prompts at different places get different answers. The session of the model that
    was asked last stays open."""
    with ExitStack() as held:
        opened: tuple[ModelRef, InferenceSession] | None = None

        def session_of(model: ModelRef) -> InferenceSession:
            nonlocal opened
            if opened is None or opened[0] != model:
                opened = None
                held.close()
                opened = model, held.enter_context(engine.open("model", model))
            return opened[1]

        def sample(model: ModelRef, prompts: Sequence[Messages], sampling: Sampling) -> list[list[Answer]]:
            requests = [
                AnswerRequest(key=f"{place}/{n}", messages=messages, seed=answer_seed(sampling.seed, str(place), n))
                for place, messages in enumerate(prompts)
                for n in range(sampling.samples)
            ]
            answers: dict[str, Answer] = {}
            if requests:
                session_of(model).answer(requests, sampling, lambda answer: answers.update({answer.key: answer}))
            return [[answers[f"{place}/{n}"] for n in range(sampling.samples)] for place in range(len(prompts))]

        yield sample
