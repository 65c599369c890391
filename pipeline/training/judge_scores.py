"""The rubric judge inside a training: asked about a whole batch, within a deadline and one budget, journalled.

A judge's answers are not the same twice, so each one, and each silence, is on disk before it is used: a resumed
training gets the same scores. Each process writes a file of its own and has its share of the budget.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.journal import Journal, JournalEntry
from pipeline.recipe.rewards import Judge
from pipeline.rewards.findings import key_of
from pipeline.rewards.judge import Budget, Judgement, JudgeRequest, JudgeSession
from pipeline.rewards.records import Finding

NAME = "judge-{rank}.jsonl"


class ScoreLine(JournalEntry, kw_only=True):
    """One judgement. `tokens` and `usd`: all that this process has spent so far."""

    score: float | None
    reason: str
    tokens: int
    usd: float


def spending_in(folder: Path) -> tuple[int, float]:
    """Tokens and US dollars, of all processes and attempts of the training in `folder`."""
    last = [lines[-1] for path in sorted(folder.glob(NAME.format(rank="*"))) if (lines := _journal(path).read())]
    return sum(line.tokens for line in last), sum((line.usd for line in last), 0.0)


def budget_of(settings: Judge, folder: Path, rank: int, processes: int) -> Budget:
    """This process's share of the budget, less what its earlier attempts have spent."""
    lines = _journal(folder / NAME.format(rank=rank)).read()
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
        self._journal = _journal(folder / NAME.format(rank=rank))
        self._known = {line.key: Finding(line.score, line.reason) for line in self._journal.read()}

    def score(self, prompts: Sequence[str], texts: Sequence[str]) -> list[Finding]:
        """Of each completion to the prompt (chat messages as JSON) at its place; equal ones are asked about once.

        What has no answer when the batch's deadline comes, or past the budget, is none, with the reason.
        """
        keys = [key_of("judge", self._session.id, *each) for each in zip(prompts, texts, strict=True)]
        new = {key: at for at, key in enumerate(keys) if key not in self._known}
        if new:
            names, budget = list(new), self._budget

            def note(place: int, said: Judgement) -> None:
                key, (score, reason) = names[place], (said.score, said.reason)
                paid = budget.spent_tokens, budget.spent_usd
                self._journal.add(ScoreLine(key=key, score=score, reason=reason, tokens=paid[0], usd=paid[1]))
                self._known[key] = Finding(score, reason)

            asked = [JudgeRequest(json.loads(prompts[at]), texts[at]) for at in new.values()]
            self._session.score(asked, note, within_s=self._settings.batch_timeout_s)
        return [self._known[key] for key in keys]


def _journal(path: Path) -> Journal[ScoreLine]:
    return Journal(path, ScoreLine)
