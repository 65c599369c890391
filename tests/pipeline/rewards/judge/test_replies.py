import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.rewards.judge import JudgeReason, TokenUsage
from pipeline.rewards.judge.replies import read_reply, read_score, read_winner

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["score", "rationale", "x"]), inner),
    max_leaves=5,
)


@pytest.mark.parametrize("score", [1, 2, 3, 4, 5])
def test_a_score(score: int) -> None:
    assert read_score(f' {{"rationale": "because", "score": {score}}}\n') == score


@pytest.mark.parametrize("score", ["0", "6", "7", "-1", "-0", "1" + "0" * 400])
def test_a_score_out_of_range(score: str) -> None:
    assert read_score(f'{{"rationale": "because", "score": {score}}}') == JudgeReason.OUT_OF_RANGE


@pytest.mark.parametrize(
    "content",
    [
        "",
        "4",
        "[]",
        "null",
        "I would say a 4.",
        '{"rationale": "because", "score": 4',
        '{"rationale": "because", "score": "4"}',
        '{"rationale": "because", "score": true}',
        '{"rationale": "because", "score": 4.0}',
        '{"rationale": "because", "score": 4e0}',
        '{"rationale": "because", "score": NaN}',
        '{"rationale": "because", "score": Infinity}',
        '{"rationale": "because", "score": 1e999}',
        '{"rationale": "because", "score": null}',
        '{"rationale": "because", "score": [4]}',
        '{"rationale": "because", "score": 4, "confidence": 1}',
        '{"rationale": "because", "score": 1, "score": 5}',
        '{"rationale": "a", "rationale": "b", "score": 5}',
        '{"rationale": 4, "score": 4}',
        '{"score": 4}',
        '{"rationale": "because"}',
        '{"Rationale": "because", "Score": 4}',
        '{"rationale": "because", "score": 4} and more',
        '{"rationale": "because", "score": 4}{"rationale": "because", "score": 4}',
        '```json\n{"rationale": "because", "score": 4}\n```',
        "{'rationale': 'because', 'score': 4}",
        '{"rationale": "because", "score": 4,}',
        '{"rationale": "because", "score": ' + "9" * 5000 + "}",
        "[" * 100_000,
    ],
)
def test_anything_else_is_no_score(content: str) -> None:
    assert read_score(content) == JudgeReason.MALFORMED


@settings(max_examples=60)
@given(json_values | st.fixed_dictionaries({"rationale": json_values, "score": json_values}))
def test_a_score_is_one_to_five_or_a_reason(value: object) -> None:
    read = read_score(json.dumps(value))
    assert read in (JudgeReason.MALFORMED, JudgeReason.OUT_OF_RANGE) or (type(read) is int and 1 <= read <= 5)


@pytest.mark.parametrize(
    ("winner", "read"),
    [
        ("A", "A"),
        ("tie", "tie"),
        ("C", JudgeReason.OUT_OF_RANGE),
        (1, JudgeReason.MALFORMED),
        (None, JudgeReason.MALFORMED),
    ],
)
def test_a_winner(winner: object, read: str) -> None:
    assert read_winner(json.dumps({"rationale": "because", "winner": winner})) == read


def reply(usage: object) -> bytes:
    choice = {"message": {"content": "hello"}, "finish_reason": "stop"}
    return json.dumps({"model": "m", "choices": [choice], "usage": usage}).encode()


@pytest.mark.parametrize(
    ("usage", "believed"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}, TokenUsage(7, 2)),
        ({"prompt_tokens": 7, "completion_tokens": 2, "details": {}}, TokenUsage(7, 2)),
        (None, None),
        ({}, None),
        ([7, 2], None),
        ({"prompt_tokens": -7, "completion_tokens": 2}, None),
        ({"prompt_tokens": 7.5, "completion_tokens": 2}, None),
        ({"prompt_tokens": True, "completion_tokens": False}, None),
        ({"prompt_tokens": "7", "completion_tokens": 2}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({"prompt_tokens": 10**12, "completion_tokens": 2}, None),
    ],
)
def test_usage_is_believed_where_it_can_be_true(usage: object, believed: TokenUsage | None) -> None:
    assert read_reply(reply(usage), "m") == ("hello", None, believed, "")


@settings(max_examples=60)
@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
def test_no_body_is_too_strange_to_be_read(body: bytes) -> None:
    assert read_reply(body, "m").reason == JudgeReason.MALFORMED
