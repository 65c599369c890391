"""The event loop in which a judge is asked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeAlias

from pipeline.recipe.rewards import Judge
from pipeline.rewards.judge.budget import Budget
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.loop import AskingLoop, open_asking_loop

if TYPE_CHECKING:
    from pipeline.rewards.judge.client import JudgeClient

JudgeLoop: TypeAlias = "AskingLoop[JudgeClient]"


def open_loop(
    endpoint: Endpoint, settings: Judge, budget: Budget, log: Callable[[str], None], backoff_s: float
) -> AbstractContextManager[JudgeLoop]:
    """A client of `endpoint` in a loop of its own, until the block ends."""

    def client() -> JudgeClient:
        from pipeline.rewards.judge.client import JudgeClient  # httpx2 takes a while to import

        return JudgeClient(endpoint, settings, budget, log, backoff_s)

    return open_asking_loop("judge", client, settings.concurrency)
