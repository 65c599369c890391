"""The default engine: transformers in a process of its own (`pipeline.serving.__main__`), which first says what
decodes, for which it loads no weights."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.core.processes import PipedProcess, piped
from pipeline.core.storage import ModelRef
from pipeline.recipe.serving import TransformersServing
from pipeline.serving.inference import Answer, AnswerRequest, Decoding, Sampling

Log = Callable[[str], None]


class TransformersEngine:
    def __init__(self, settings: TransformersServing, log: Log) -> None:
        self._settings, self._log = settings, log

    @contextmanager
    def open(self, arm: str, model: ModelRef) -> Generator[TransformersSession]:
        settings = self._settings
        command = [sys.executable, "-m", "pipeline.serving", model.uri, str(settings.batch_size)]
        command += [str(settings.threads), str(os.getpid())]
        with piped(command) as child:
            yield TransformersSession(child, model, self._log)


class TransformersSession:
    def __init__(self, child: PipedProcess, model: ModelRef, log: Log) -> None:
        self._child, self._process, self._model, self._log = child, child.process, model, log
        self.decoding = Decoding.model_validate(self._next("decoding"))

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Callable[[Answer], None]) -> None:
        if not requests:
            return
        assert self._process.stdin is not None
        try:
            for each in (sampling, *requests):
                self._process.stdin.write(each.model_dump_json() + "\n")
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None
        for _ in requests:
            done(Answer.model_validate(self._next("answer")))

    def _next(self, wanted: str) -> Any:
        """The content of the next line of this kind; lines of progress on the way go to the log."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            ((kind, content),) = json.loads(line).items()
            if kind == wanted:
                return content
            if kind == "refused":
                raise ValueError(f"The model at {Path(self._model.uri)} cannot be asked this: {content}")
            self._log(f"serving: {content}")
        raise self._failed()

    def _failed(self) -> RuntimeError:
        code, tail = self._child.ended()
        return RuntimeError(f"Serving {self._model.uri} ended (exit code {code}); its last lines:\n{tail}")
