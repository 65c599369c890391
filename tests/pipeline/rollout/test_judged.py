"""Replayed answers without references: what the gate's judge says of them, by itself."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipeline.demo.desk.requests import draw
from pipeline.rewards.judge import Judgement, JudgeRequest
from pipeline.rollout.judged import JudgedGrader
from pipeline.rollout.replay import AnsweredRequest
from tests.answers import answer

ASKED = draw(random.Random(1), "train").messages


class Session:
    """A judge that scores by the text."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def score(self, asked: Sequence[JudgeRequest]) -> list[Judgement]:
        self.asked = [each.completion for each in asked]
        scores = {"fine": 1.0, "good": 0.75, "long": 0.5, "false": 0.0}
        return [Judgement(score=scores.get(text), reason="" if text in scores else "judge_cut") for text in self.asked]


def test_a_four_is_right_and_a_three_is_wrong() -> None:
    texts = ["fine", "false", "good", "long", "?"]
    grades = JudgedGrader(Session())([AnsweredRequest(ASKED, answer(text), "") for text in texts])  # pyright: ignore
    assert [each.outcome for each in grades] == ["correct", "wrong", "correct", "wrong", "judge_cut"]


def test_what_is_no_answer_is_not_judged() -> None:
    session = Session()
    cut = answer("fine").model_copy(update={"stop": "length"})
    given = [AnsweredRequest(ASKED, each, "") for each in (cut, answer(" "), answer("good"))]
    grades = JudgedGrader(session)(given)  # pyright: ignore
    assert [each.outcome for each in grades] == ["no_answer", "no_answer", "correct"]
    assert session.asked == ["good"]
