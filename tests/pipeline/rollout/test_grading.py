"""Who grades what production served: the verifier by a reference, else the gate's judge, else nobody."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from pipeline.demo.desk.answers import statement
from pipeline.demo.desk.judges import server
from pipeline.demo.desk.requests import draw
from pipeline.recipe import load
from pipeline.rewards.judge import Endpoint
from pipeline.rollout.grading import GRADES, PENDING, UNGRADED, ServedAnswer, answer_grader

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parent.parent.parent.parent / "jobs" / "recipes"
DESK, ARITHMETIC = load(RECIPES / "desk.yaml"), load(RECIPES / "embedded.yaml")
AWAY = Endpoint("http://127.0.0.1:9/v1")
SUM = [{"role": "user", "content": "3 + 4?"}]


@contextmanager
def judges() -> Generator[Endpoint]:
    with server() as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield Endpoint(f"http://127.0.0.1:{running.server_port}/v1")
        running.shutdown()


def right_and_refused(number: int) -> list[ServedAnswer]:
    """Requests of the desk, each answered right and then refused."""
    rng = random.Random(3)
    asked = [draw(rng, "heldout") for _ in range(number)]
    texts = [(each.messages, f"Hello! {statement(each.fact)} Good day!") for each in asked]
    texts += [(each.messages, "Hello! I cannot say. Good day!") for each in asked]
    return [ServedAnswer(messages, text, True, "") for messages, text in texts]


def test_answers_without_references_are_the_judges() -> None:
    paid: list[tuple[int, float]] = []
    with judges() as endpoint, answer_grader(DESK, endpoint, pay=lambda *each: paid.append(each)) as grading:
        verdicts = grading.grade(right_and_refused(40))
    assert len(paid) == 1 and paid[0][0] > 0, "what the judge took is told once for each time that it is asked"
    assert set(verdicts) == {"correct", "wrong"}
    assert verdicts[:40].count("correct") > 20  # it errs at its planted rates
    assert verdicts[40:].count("correct") < 8


def test_no_judge_is_asked_about_what_is_no_answer() -> None:
    (right, refused) = right_and_refused(1)
    with answer_grader(DESK, AWAY) as grading:
        assert grading.grade([right._replace(text=" "), refused._replace(finished=False)]) == ["no_answer", "no_answer"]


def test_a_judge_that_is_away_grades_nothing() -> None:
    with answer_grader(DESK, AWAY) as grading:
        assert grading.grade(right_and_refused(1)) == [PENDING, PENDING]


def test_references_and_answers_without_keep_their_order() -> None:
    unknown = ServedAnswer(SUM, "So it is.\n#### 9", True, "")
    answers = [
        ServedAnswer(SUM, "So it is.\n#### 7", True, "7"),
        unknown,
        ServedAnswer(SUM, "#### 8", True, "7"),
        unknown,
        ServedAnswer(SUM, "", True, "7"),
    ]
    with answer_grader(ARITHMETIC, None) as grading:
        assert grading.grade(answers) == ["correct", UNGRADED, "wrong", UNGRADED, "no_answer"]
    with judges() as endpoint, answer_grader(DESK, endpoint) as grading:
        assert grading.grade(answers) == ["correct", "wrong", "wrong", "wrong", "no_answer"]


def test_a_reference_that_cannot_be_checked_grades_nothing() -> None:
    with answer_grader(ARITHMETIC, None) as grading:
        assert grading.grade([ServedAnswer(SUM, "#### 7", True, "x" * 100_000)])[0] not in (*GRADES, PENDING)
