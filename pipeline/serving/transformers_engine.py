"""The default engine: transformers in a process of its own (`pipeline.serving.__main__`), which first says what
decodes, for which it loads no weights. And prompts in, completions out, for the demo's traffic and the fingerprints of
models."""

import json
import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pipeline.core.processes import PipedProcess, piped
from pipeline.core.storage import ModelRef
from pipeline.recipe.serving import TransformersServing
from pipeline.serving.inference import (
    Answer,
    AnswerRequest,
    Decoding,
    InferenceEngine,
    InferenceSession,
    Messages,
    Sampling,
    answer_seed,
    with_progress,
)

Log = Callable[[str], None]


class TransformersEngine:
    def __init__(self, settings: TransformersServing, log: Log) -> None:
        self._settings, self._log = settings, log

    @contextmanager
    def open(self, arm: str, model: ModelRef) -> "Generator[TransformersSession]":
        settings = self._settings
        command = [sys.executable, "-m", "pipeline.serving", model.uri, str(settings.batch_size)]
        command += [str(settings.threads), str(os.getpid())]
        with piped(f"Serving {model.uri}", command) as child:
            yield TransformersSession(child, model, self._log)


class TransformersSession:
    def __init__(self, child: PipedProcess, model: ModelRef, log: Log) -> None:
        self._child, self._model, self._log = child, model, log
        self.decoding = Decoding.model_validate(self._next())

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Callable[[Answer], None]) -> None:
        if not requests:
            return
        self._child.send("".join(f"{each.model_dump_json()}\n" for each in (sampling, *requests)) + "\n")
        take = with_progress(done, len(requests), self._log)
        for _ in requests:
            take(Answer.model_validate(self._next()))

    def _next(self) -> Any:
        """The content of the next line."""
        ((kind, content),) = json.loads(self._child.line()).items()
        if kind == "refused":
            raise ValueError(f"The model at {Path(self._model.uri)} cannot be asked this: {content}")
        return content


Sampler = Callable[[ModelRef, Sequence[Messages], Sampling], list[list[Answer]]]
"""Draws `sampling.samples` answers to each prompt; the outer list follows the prompts."""


def sampler(log: Callable[[str], None] = print) -> AbstractContextManager[Sampler]:
    """A sampler over transformers; it raises what a session does."""
    return over(TransformersEngine(TransformersServing(), log))


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
