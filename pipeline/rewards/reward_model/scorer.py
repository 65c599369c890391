"""Scoring by a trained reward model, in a process of its own: the caller imports no torch."""

import json
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.processes import PipedProcess, piped
from pipeline.core.storage import ModelRef, digest_dir
from pipeline.rewards.records import Finding

MODULE = "pipeline.rewards.reward_model"


class AnsweredChat(NamedTuple):
    """An answer to score. `finished`: it ended with its end token; one that was cut at a limit is worth 0."""

    messages: Sequence[dict[str, Any]]
    completion: str
    finished: bool = True


class RewardScorer:
    """A reward model, opened."""

    def __init__(self, child: PipedProcess, folder: str) -> None:
        self._child, self._folder = child, folder

    def score(self, completions: Sequence[AnsweredChat]) -> list[Finding]:
        """For each the probability of a thumb up, in [0, 1]; or none with the reason: too_long (for the model, or its
        `max_tokens`), template (which refuses the messages), not_finite.

        The values do not depend on what is scored beside them, up to 1e-6. Raises RuntimeError when the process ends.
        """
        if not completions:
            return []
        line = self._child.ask(json.dumps(completions), f"The reward model at {self._folder}")
        return [Finding(value, reason) for value, reason in json.loads(line)]


@contextmanager
def open_scorer(model: ModelRef, batch_size: int = 32, threads: int = 1) -> Generator[RewardScorer]:
    """The scorer of `RewardModelReport.model`, until the block ends.

    Raises ValueError when the folder is not the one that was trained, to the bit.
    """
    folder = Path(model.uri)
    if not folder.is_dir() or digest_dir(folder) != model.digest:
        raise ValueError(f"{folder} is missing, or changed since the reward model was trained: pt retry reward_model")
    command = [sys.executable, "-m", MODULE, "score", model.uri, str(batch_size), str(threads), str(os.getpid())]
    with piped(command) as child:
        yield RewardScorer(child, model.uri)
