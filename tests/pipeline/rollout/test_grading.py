"""Who grades what production served: the verifier by a reference, else the gate's judge, else nobody."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.core.storage import Store
from pipeline.recipe import Recipe, load
from pipeline.recipe.rewards import Judge
from pipeline.rewards.findings import spent
from pipeline.rewards.judge import Endpoint
from pipeline.rollout.grading import PENDING, UNGRADED, ServedAnswer, answer_grader
from tests.pipeline.rewards.judge.endpoint import MODEL, Request, Said, Server, parts, scored, serving

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parent.parent.parent.parent / "jobs" / "recipes"
DESK, ARITHMETIC = load(RECIPES / "desk.yaml"), load(RECIPES / "embedded.yaml")
SUM = [{"role": "user", "content": "3 + 4?"}]


def test_references_and_answers_without_keep_their_order(tmp_path: Path) -> None:
    unknown = ServedAnswer(SUM, "So it is.\n#### 9", True, "")
    answers = [
        ServedAnswer(SUM, "So it is.\n#### 7", True, "7"),
        unknown,
        ServedAnswer(SUM, "#### 8", True, "7"),
        unknown,
        ServedAnswer(SUM, "", True, "7"),
    ]
    with answer_grader(ARITHMETIC, None, Store(tmp_path), "r") as grading:
        assert grading.grade(answers) == ["correct", UNGRADED, "wrong", UNGRADED, "no_answer"]
    with serving(lambda server, request, place: scored(1)) as server:
        recipe, endpoint = judged_by(server)
        with answer_grader(recipe, endpoint, Store(tmp_path), "r") as grading:
            assert grading.grade(answers) == ["correct", "wrong", "wrong", "wrong", "no_answer"]
            assert (
                grading.grade([ServedAnswer(SUM, " ", True, ""), ServedAnswer(SUM, "7", False, "")])
                == ["no_answer"] * 2
            )
    assert len(server.requests) == 1


def judged_by(server: Server, **fields: Any) -> tuple[Recipe, Endpoint]:
    judge = Judge.model_validate({"model": MODEL, "digest": "sha256:0f", "attempts": 1, "timeout_s": 20, **fields})
    return DESK.model_copy(update={"evaluation": DESK.evaluation.model_copy(update={"judge": judge})}), Endpoint(
        server.url, "key"
    )


def answers(count: int) -> list[ServedAnswer]:
    return [ServedAnswer(SUM, f"The {n % 4}th.", True, "", user_id=f"u{n}") for n in range(count)]


def test_an_answer_is_judged_once_over_all_looks(tmp_path: Path) -> None:
    """Equal answers, and those of earlier looks, are not asked about again; what had no answer then is."""
    away = True

    def judge(server: Server, request: Request, place: int) -> Said:
        return Said(503) if away and parts(request)["answer to be scored"] == "The 3th." else scored(5)

    store = Store(tmp_path)
    with serving(judge) as server:
        recipe, endpoint = judged_by(server)
        for look in range(6):
            with answer_grader(recipe, endpoint, store, "r") as grading:
                grades = grading.grade(answers(8))
            assert grades == ["correct", "correct", "correct", "correct" if look else PENDING] * 2
            away = False
    assert len(server.requests) == 5
    assert spent(store, "r").tokens == 400


def test_the_budget_is_of_the_whole_rollout(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with serving(lambda server, request, place: scored(5)) as server:
        recipe, endpoint = judged_by(server, max_tokens=5_000)
        grades: list[str] = []
        for look in range(40):
            with answer_grader(recipe, endpoint, store, "r") as grading:
                grades += grading.grade([ServedAnswer(SUM, f"Look {look}.", True, "")])
        assert (grades[0], grades[-1]) == ("correct", "judge_budget") and 0 < len(server.requests) < 40
        with answer_grader(recipe, endpoint, store, "another") as grading:
            assert grading.grade(answers(1)) == ["correct"]
    assert spent(store, "r").tokens <= 5_000
