"""The rubric judge inside a training: asked about a whole batch, within a deadline and one budget, journalled.

A judge's answers are not the same twice, so each one, and each silence, is on disk before it is used: a resumed
training gets the same scores. Each process writes a file of its own and has its share of the budget.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pipeline.recipe.rewards import Judge
from pipeline.rewards.findings import key_of
from pipeline.rewards.judge import Budget, Judgement, JudgeRequest, JudgeSession
from pipeline.rewards.records import Finding

NAME = "judge-{rank}.jsonl"


class Scored(msgspec.Struct):
    """One judgement. `tokens` and `usd`: all that this process has spent so far."""

    key: str
    score: float | None
    reason: str
    tokens: int
    usd: float


def spending_in(folder: Path) -> tuple[int, float]:
    """Tokens and US dollars, of all processes and attempts of the training in `folder`."""
    last = [lines[-1] for path in sorted(folder.glob(NAME.format(rank="*"))) if (lines := _read(path))]
    return sum(line.tokens for line in last), sum((line.usd for line in last), 0.0)


def budget_of(settings: Judge, folder: Path, rank: int, processes: int) -> Budget:
    """This process's share of the budget, less what its earlier attempts have spent."""
    lines = _read(folder / NAME.format(rank=rank))
    return Budget(
        None if settings.max_tokens is None else settings.max_tokens // processes,
        None if settings.max_usd is None else settings.max_usd / processes,
        settings.usd_per_million_prompt_tokens,
        settings.usd_per_million_completion_tokens,
        spent_tokens=lines[-1].tokens if lines else 0,
        spent_usd=lines[-1].usd if lines else 0.0,
    )


class JudgeScores:
    """The judge, opened, with what it has said before."""

    def __init__(self, session: JudgeSession, settings: Judge, budget: Budget, folder: Path, rank: int) -> None:
        self._session, self._settings, self._budget = session, settings, budget
        self._path = folder / NAME.format(rank=rank)
        self._known = {line.key: Finding(line.score, line.reason) for line in _read(self._path, mend=True)}

    def score(self, prompts: Sequence[str], texts: Sequence[str]) -> list[Finding]:
        """Of each completion to the prompt (chat messages as JSON) at its place; equal ones are asked about once.

        What has no answer when the batch's deadline comes, or past the budget, is none, with the reason.
        """
        keys = [key_of("judge", self._session.id, *each) for each in zip(prompts, texts, strict=True)]
        new = {key: at for at, key in enumerate(keys) if key not in self._known}
        if new:
            names = list(new)
            asked = [JudgeRequest(json.loads(prompts[at]), texts[at]) for at in new.values()]
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                self._session.score(
                    asked,
                    lambda place, judgement: self._note(descriptor, names[place], judgement),
                    within_s=self._settings.batch_timeout_s,
                )
            finally:
                os.close(descriptor)
        return [self._known[key] for key in keys]

    def _note(self, descriptor: int, key: str, judgement: Judgement) -> None:
        budget = self._budget
        line = Scored(key, judgement.score, judgement.reason, budget.spent_tokens, budget.spent_usd)
        content = msgspec.json.encode(line) + b"\n"
        if os.write(descriptor, content) != len(content):
            raise OSError(f"{self._path} took a part of a line alone: make room on its disk, and train again.")
        self._known[key] = Finding(judgement.score, judgement.reason)


def _read(path: Path, mend: bool = False) -> list[Scored]:
    """The whole lines. `mend`: cut a torn last one off, so that the next begins at a line's start."""
    if not path.is_file():
        return []
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if mend and whole < len(content):
        os.truncate(path, whole)
    try:
        return [msgspec.json.decode(line, type=Scored) for line in content[:whole].splitlines()]
    except msgspec.MsgspecError as error:
        raise ValueError(
            f"{path} holds what is no judgement ({error}). Move it away: the judge is asked anew."
        ) from error
