"""A process in which a calendar passes: its clock, runs of Dagster that it executes itself, and answers of models that
are a file."""

import ctypes
import gc
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from dagster._core.execution.api import execute_run
from dagster._core.launcher import LaunchRunContext
from dagster._utils.hosted_user_process import recon_job_from_origin

from jobs.launcher import DetachedRunLauncher
from pipeline.core.storage import ModelRef
from pipeline.rollout import controller
from pipeline.serving.inference import Answer, AnswerRequest, Decoding, Sampling

SKILLS = "skills.json"
"""In a model's folder: how often it is right on the suite, and in production."""
DECODING = Decoding(
    engine="calendar", version="1", device="cpu", dtype="float32", stop_ids=(0,), context=512, tokens_digest="t"
)


class InProcessLauncher(DetachedRunLauncher):
    def launch_run(self, context: LaunchRunContext) -> None:
        assert context.job_code_origin is not None, "every launched run has code behind it"
        execute_run(recon_job_from_origin(context.job_code_origin), context.dagster_run, self._instance)


class CalendarClock:
    """The time of this process: real seconds pass, the main thread's sleep takes none, and `to` moves on."""

    def __init__(self, start: datetime) -> None:
        self.real, self.ahead, sleep = time.time, start.timestamp() - time.time(), time.sleep

        def slept(seconds: float) -> None:
            is_main = threading.current_thread() is threading.main_thread()
            self.ahead += seconds if is_main else sleep(seconds) or 0.0

        time.time, time.sleep, time.time_ns = self.now, slept, lambda: int(self.now() * 1e9)
        bound = controller.drive.__defaults__ or ()  # at its definition
        controller.drive.__defaults__ = tuple(self.now if each is self.real else each for each in bound)
        methods: Any = gc.get_referents(datetime.__dict__)[0]  # of a type in C, which all modules share
        methods["now"] = classmethod(lambda _, tz=None: datetime.fromtimestamp(self.now(), tz))
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))

    def now(self) -> float:
        return self.real() + self.ahead

    def to(self, moment: datetime) -> None:
        self.ahead += max(0.0, moment.timestamp() - self.now())


def skills(folder: str | Path) -> list[float]:
    return json.loads(Path(folder, SKILLS).read_text(encoding="utf-8"))


class Session(NamedTuple):
    """A model that is right at its skill, more often at questions that are easy for all models."""

    answers: dict[str, str]
    model: ModelRef
    decoding: Decoding = DECODING

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Callable[[Answer], None]) -> None:
        skill = skills(self.model.uri)[0]
        for each in requests:
            prompt = str(each.messages[-1]["content"])
            ease = random.Random(prompt).uniform(-0.3, 0.3)
            is_right = random.Random(f"{each.seed} {prompt} {self.model.digest}").random() < skill + ease
            text = self.answers[prompt] if is_right else "#### 1000001"
            done(Answer(key=each.key, text=text, tokens=8, prompt_tokens=9, stop="stop", latency_s=0.1))
