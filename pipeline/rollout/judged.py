"""Grades of replayed answers where no request has a reference: the gate's judge scores each answer by itself.

Rule. A score of 4 or 5 is a right answer, a lower one a wrong one. An answer without text or without its end is none,
and is not judged. An answer that the judge says nothing about is not graded. Owns that rule alone: who may judge was
decided at the gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.rewards.judge import Judgement, JudgeRequest, JudgeSession
from pipeline.rollout.replay import AnsweredRequest

GOOD = (4 - 1) / 4
"""A judge's 4, in [0, 1]."""


class JudgedGrade(NamedTuple):
    """`outcome`: correct, wrong, no_answer, or the judge's reason for no score."""

    outcome: str


class JudgedGrader:
    """Grades by a judge that is open."""

    def __init__(self, session: JudgeSession) -> None:
        self._session = session

    def __call__(self, answered: Sequence[AnsweredRequest]) -> list[JudgedGrade]:
        given = [each for each in answered if _is_given(each)]
        judgements = iter(self._session.score([JudgeRequest(each.messages, each.answer.text) for each in given]))
        return [self._grade(next(judgements)) if _is_given(each) else JudgedGrade("no_answer") for each in answered]

    @staticmethod
    def _grade(judgement: Judgement) -> JudgedGrade:
        if judgement.score is None:
            return JudgedGrade(judgement.reason)
        return JudgedGrade("correct" if judgement.score >= GOOD else "wrong")


def _is_given(each: AnsweredRequest) -> bool:
    return each.answer.finished and bool(each.answer.text.strip())
