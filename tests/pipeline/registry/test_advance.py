"""Who grades the answers of a replay: the verifier, or the gate's judge where no request has a reference."""

from __future__ import annotations

import random
from pathlib import Path
from threading import Thread

from pipeline.demo.desk.answers import statement
from pipeline.demo.desk.judges import server
from pipeline.demo.desk.requests import draw
from pipeline.recipe import load
from pipeline.registry.advance import _grader  # pyright: ignore[reportPrivateUsage]
from pipeline.rewards.judge import Endpoint
from pipeline.rollout.replay import AnsweredRequest
from tests.answers import answer

DESK = load(Path(__file__).parent.parent.parent.parent / "jobs" / "recipes" / "desk.yaml")


def right_and_wrong() -> list[AnsweredRequest]:
    """Forty requests of the desk, each answered right and then refused."""
    rng = random.Random(3)
    asked = [draw(rng, "heldout") for _ in range(40)]
    texts = [(each.messages, f"Hello! {statement(each.fact)} Good day!") for each in asked]
    texts += [(each.messages, "Hello! I cannot say. Good day!") for each in asked]
    return [AnsweredRequest(messages, answer(text), "") for messages, text in texts]


def test_unreferenced_answers_are_graded_by_the_gates_judge() -> None:
    given = right_and_wrong()
    with server() as judges:
        Thread(target=judges.serve_forever, daemon=True).start()
        endpoint = Endpoint(f"http://127.0.0.1:{judges.server_port}/v1")
        with _grader(DESK, [(each.messages, "") for each in given], endpoint, print) as grade:
            outcomes = [each.outcome for each in grade(given)]
        judges.shutdown()
    assert {"correct", "wrong"} == set(outcomes)
    assert outcomes[:40].count("correct") > 20  # it errs at its planted rates
    assert outcomes[40:].count("correct") < 8


def test_answers_with_references_are_graded_by_the_verifier() -> None:
    asked = [{"role": "user", "content": "3 + 4?"}]
    answered = [AnsweredRequest(asked, answer("So it is.\n#### 7"), "7"), AnsweredRequest(asked, answer("#### 8"), "7")]
    with _grader(DESK, [(asked, "7")], Endpoint("http://127.0.0.1:9/v1"), print) as grade:
        assert [each.outcome for each in grade(answered)] == ["correct", "wrong"]
