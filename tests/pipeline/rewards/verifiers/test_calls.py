from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.rewards.verifiers import Outcome, VerifierTask, grade
from pipeline.rewards.verifiers.structured import same_calls
from tests.pipeline.core.tool_templates import answer, calls

F, G = answer("f", {"a": 1, "b": [True, None]}), answer("g", {})
WANTED = [{"name": "f", "arguments": {"b": [True, None], "a": 1.0}}, {"name": "g", "arguments": {}}]


@pytest.mark.parametrize(
    ("completion", "reference", "outcome"),
    [
        (f"{F}\n{G}", WANTED, "correct"),
        (f"Both at once.\n{G}\n{F}", WANTED, "correct"),
        (F, WANTED, "wrong"),
        (f"{F}\n{G}\n{G}", WANTED, "wrong"),
        (answer("f", {"a": 2, "b": [True, None]}) + G, WANTED, "wrong"),
        (answer("f", {"a": True}), {"name": "f", "arguments": {"a": 1}}, "wrong"),
        (G, {"name": "g"}, "correct"),
        (G, calls(("g", {})), "correct"),
        ("I would call g.", WANTED, "no_answer"),
        ("Nothing to call.", [], "correct"),
        (G, [], "wrong"),
        (G, "g()", "unparsable_gold"),
        (G, [{"name": "g", "arguments": "no JSON"}], "unparsable_gold"),
    ],
)
def test_calls_are_the_same_by_name_and_arguments(completion: str, reference: Any, outcome: str) -> None:
    text = reference if isinstance(reference, str) else json.dumps(reference)
    assert same_calls(completion, text).outcome == outcome
    (graded,) = grade([VerifierTask(completion, text, "calls")])
    assert graded.outcome == Outcome(outcome)


def test_other_checks_read_the_text_beside_a_call() -> None:
    checks = [VerifierTask(f"It is sent.\n{F}", "It is sent.", "exact"), VerifierTask(F, "1", "math")]
    assert [each.outcome for each in grade(checks)] == [Outcome.correct, Outcome.no_answer]
