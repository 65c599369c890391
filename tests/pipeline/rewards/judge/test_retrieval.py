"""The questions about passages: what they show, and how strictly their answers are read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.rewards.judge.retrieval import (
    GUESSES,
    LIKENESS,
    STATEMENTS,
    SUPPORT,
    USEFULNESS,
    RetrievalQuestion,
    ask_guesses,
    ask_likeness,
    ask_statements,
    ask_support,
    ask_usefulness,
    read_guesses,
    read_marks,
    read_statements,
    read_usefulness,
)

ASKED = {
    "statements": ask_statements("q?", "an answer"),
    "support": ask_support(["one", "two"], ["a", "b"]),
    "guesses": ask_guesses("an answer"),
    "likeness": ask_likeness("q?", ["a", "b"]),
    "usefulness": ask_usefulness("q?", "an answer", "one"),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_question_shows_its_form_and_no_placeholder(name: str) -> None:
    asked: RetrievalQuestion = ASKED[name]
    assert asked.form.name == name
    system, user = (message["content"] for message in asked.messages)
    keys = {key for key in ("statements", "verdicts", "questions", "mark") if f'"{key}"' in system}
    assert keys and all(f'"{key}"' in user for key in keys), "the form stands before the data and after it"
    assert "{{" not in system + user and "data_rule" not in system
    assert asked.form.schema["additionalProperties"] is False


def test_every_text_is_a_part_of_its_own() -> None:
    text = ASKED["support"].messages[-1]["content"]
    assert [text.count(f"BEGIN {name} ===") for name in ("passage 1", "passage 2", "statement 1", "statement 2")] == [
        1
    ] * 4


def mark(**changes: Any) -> dict[str, Any]:
    return {"number": 1, "reason": "", "mark": 1, **changes}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "Sure! Here you are.",
        "{",
        "[]",
        "[" * 50_000,
        json.dumps({"verdicts": [mark()], "extra": 1}),
        json.dumps({"verdicts": [mark(score=1.0)]}),
        json.dumps({"verdicts": [{"number": 1, "mark": 1}]}),
        *(json.dumps({"verdicts": [mark(mark=value)]}) for value in (7, "1", True, 0.5, None, float("nan"))),
        *(json.dumps({"verdicts": [mark(number=value)]}) for value in (0, 2, "1")),
        '{"verdicts": [{"number": 1, "reason": "", "mark": 1, "mark": 0}]}',
    ],
)
def test_any_other_answer_is_no_mark(content: str) -> None:
    assert read_marks(json.dumps({"verdicts": [mark()]}), SUPPORT, 1) == [1]
    assert read_marks(content, SUPPORT, 1) is None


def test_each_form_has_its_own_marks() -> None:
    five = json.dumps({"verdicts": [mark(mark=5)]})
    assert (read_marks(five, LIKENESS, 1), read_marks(five, SUPPORT, 1)) == ([5], None)
    assert {form.name for form in (STATEMENTS, SUPPORT, GUESSES, LIKENESS, USEFULNESS)} == ASKED.keys()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"statements": ["a", "b"]}', ["a", "b"]),
        ('{"statements": []}', None),
        ('{"statements": ["a", " "]}', None),
        ('{"statements": ["a", 2]}', None),
        ('{"statements": "a"}', None),
    ],
)
def test_statements_are_texts_and_at_least_one(content: str, expected: list[str] | None) -> None:
    assert read_statements(content) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"evasive": 0, "questions": ["a", "b", "c"]}', (False, ["a", "b", "c"])),
        ('{"evasive": 1, "questions": []}', (True, [])),
        ('{"evasive": 0, "questions": ["a", "b"]}', None),
        ('{"evasive": 0, "questions": ["a", "b", ""]}', None),
        ('{"evasive": 2, "questions": ["a", "b", "c"]}', None),
        ('{"questions": ["a", "b", "c"]}', None),
    ],
)
def test_guesses_are_three_questions(content: str, expected: Any) -> None:
    assert read_guesses(content) == expected


def test_usefulness_is_yes_or_no() -> None:
    assert [read_usefulness(json.dumps({"reason": "", "mark": value})) for value in (1, 0, 2, "1")] == [
        1,
        0,
        None,
        None,
    ]
