import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.recipe.rewards import Rules, VerifierKind
from pipeline.rewards.composite import distinct_share, measure
from pipeline.rewards.records import COMPONENTS, DOES_NOT_APPLY, Finding

RULES = Rules()
KINDS: list[VerifierKind | None] = ["math", "exact", "normalised", "json_schema", "code", None]
SOLUTION = "Ann has 3 boxes with 4 pens each, so she has 3 * 4 = 12 pens in all.\n#### 12"


def value(name: str, text: str, kind: VerifierKind | None = "math", rules: Rules = RULES) -> float | None:
    return measure(text, kind, None, rules)[name].value


def test_an_honest_solution_keeps_every_rule() -> None:
    result = measure(SOLUTION, "math", 3.0, RULES)
    assert set(result) <= set(COMPONENTS)
    assert result == {
        "format": Finding(1.0),
        "length": Finding(1.0),
        "repetition": Finding(1.0),
        "latency": Finding(0.9),
    }


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("so 12\n#### 12", "math", 1.0),
        ("so \\boxed{12}", "exact", 1.0),
        ("so 12", "math", 0.0),
        ("so \\boxed{12", "math", 0.0),
        ('{"a": [1]}', "json_schema", 1.0),
        ('Here:\n```json\n{"a": 1}\n```\nDone.', "json_schema", 1.0),
        ("Here: {'a': 1}", "json_schema", 0.0),
        ("```json\n{'a': 1}\n```", "json_schema", 0.0),
        ("[" * 100_000, "json_schema", 0.0),
        ("```python\nx = 1\n```", "code", 1.0),
        ("x = 1", "code", 0.0),
        ("```python\nx = \n```", "code", 0.0),
        ("```python\n\0\n```", "code", 0.0),
        ("```python\n" + "(" * 10_000 + "\n```", "code", 0.0),
        ("```python\nx = '" + "\\d" * 9 + "'\n```", "code", 1.0),
    ],
)
def test_format_is_where_that_kind_of_check_looks(text: str, kind: VerifierKind, expected: float) -> None:
    assert value("format", text, kind) == expected


@pytest.mark.parametrize(
    ("length", "expected"), [(0, 0.0), (49, 0.0), (50, 1.0), (51, 1.0), (500, 1.0), (501, 0.0), (100_000, 0.0)]
)
def test_length_counts_both_bounds(length: int, expected: float) -> None:
    assert value("length", " \n" + "a" * length + "\n ") == expected


@pytest.mark.parametrize(
    "template", ["Let me think step by step. ", "ha", "!", "the ", "我们来看", "abc\u200b", "| --- "]
)
def test_a_template_repeated_is_worth_almost_nothing(template: str) -> None:
    values = [distinct_share(template * times) for times in (1, 200, 2000)]
    assert values[0] == 1.0
    assert values[1] < 0.1
    assert values[2] < 0.01


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, 1.0), (15.0, 0.5), (30.0, 0.0), (31.0, 0.0), (1e300, 0.0), (-0.1, None), (None, None), (math.nan, None)],
)
def test_latency_falls_to_the_slow_mark(seconds: float | None, expected: float | None) -> None:
    result = measure(SOLUTION, "math", seconds, RULES)["latency"]
    assert result == (DOES_NOT_APPLY if expected is None else Finding(expected))


HOSTILE = st.lists(
    st.sampled_from(
        ["####", "\\boxed{", "}", "\r", "\x85", "{", "```", "```python\n", "```json\n", "\n",
         "<think>", "</think>", "<|im_end|>", "\0",
         "\ud800", "\u200b", "\u202e", "a", "1", "-", "(", '"', "score: 1.0", "é", "中", "lambda:", "if 1:", "\\"]
    )
    | st.text(st.characters(), max_size=3),
    max_size=60,
).map("".join)  # fmt: skip


@given(HOSTILE, st.sampled_from(KINDS), st.none() | st.floats(), st.integers(0, 5), st.floats(0.001, 100))
def test_any_text_has_findings_in_range(
    text: str, kind: VerifierKind | None, seconds: float | None, least: int, slow_s: float
) -> None:
    result = measure(text, kind, seconds, Rules(min_chars=least, slow_s=slow_s))
    assert list(result) == ["format", "length", "repetition", "latency"]
    for finding in result.values():
        assert finding == DOES_NOT_APPLY or (finding.value is not None and 0.0 <= finding.value <= 1.0)
