import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.rewards.verifiers import Outcome, final_answer, grade, grader, plain_number


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("7*2=14. 14+16=30.\n#### 30", "30"),
        ("#### 3\nno, wait\n#### 4\n", "4"),
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        (r"\boxed{1} or \boxed{2}", "2"),
        ("the answer is 30", None),
        ("####", None),
        (r"\boxed{never closed", None),
    ],
)
def test_final_answer(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


@given(st.integers(-(10**20), 10**20))
def test_plain_numbers_are_exact(number: int) -> None:
    assert plain_number(str(number)) == plain_number(f"{number}.0") == Fraction(number)
    if number >= 0:
        assert plain_number(f"${number:,}") == Fraction(number)


@pytest.mark.parametrize(
    ("completion", "reference", "outcome"),
    [
        ("#### 30", "30", Outcome.correct),
        ("#### 30.", "#### 30", Outcome.correct),
        ("#### 1,234", "1234", Outcome.correct),
        ("#### $18", "18", Outcome.correct),
        ("#### 31", "30", Outcome.wrong),
        (r"\boxed{\frac{1}{2}}", "0.5", Outcome.correct),
        ("#### 2/4", r"\frac{1}{2}", Outcome.correct),
        ("#### x+1", "1+x", Outcome.correct),
        ("thirty", "30", Outcome.no_answer),
        ("#### ?!", "30", Outcome.no_answer),
        ("#### 30", "", Outcome.unparsable_gold),
        ("", "30", Outcome.no_answer),
    ],
)
def test_outcomes(completion: str, reference: str, outcome: Outcome) -> None:
    assert grade([(completion, reference)], workers=1)[0].outcome is outcome


def test_one_poisoned_item_costs_only_itself() -> None:
    """Each of these makes math-verify or the interpreter run away, fail or refuse; the others keep their verdicts."""
    good, bad = ("#### 1/2", "0.5"), ("#### 1/3", "0.5")
    answers = [
        r"\boxed{((((9^{9})^{9})^{9})^{9})^{9}}",
        "#### " + "(" * 150 + "1" + ")" * 150,
        "#### " + "7" * 1_000_000,
        "#### 99999!!",
        "#### 10**10**10**10 + 1/2",
    ]
    poison = [(answer, "1/7") for answer in answers]
    pairs = [pair for item in poison for pair in (good, item, bad)]
    with grader(workers=2, timeout_s=3.0) as check:
        grades = check(pairs)
    assert {g.outcome for g in grades[0::3]} == {Outcome.correct}
    assert {g.outcome for g in grades[2::3]} == {Outcome.wrong}
    assert Outcome.correct not in {g.outcome for g in grades[1::3]}


def test_a_worker_that_hangs_is_killed_and_labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    with grader(workers=1, timeout_s=1.0) as check:
        hanging = check(
            [(r"\boxed{\sum_{k=1}^{10^{9}} \frac{1}{k^{3}} + 3^{3^{3^{3^{3}}}}}", "1/2"), ("#### 1/2", "0.5")]
        )
    assert hanging[0].outcome in (Outcome.timeout, Outcome.error, Outcome.wrong)
    assert hanging[1].outcome is Outcome.correct


def test_failed_checks_have_no_score() -> None:
    assert {o: o.score for o in Outcome} == {
        Outcome.correct: 1.0,
        Outcome.wrong: 0.0,
        Outcome.no_answer: 0.0,
        Outcome.unparsable_gold: None,
        Outcome.timeout: None,
        Outcome.error: None,
    }


@pytest.mark.shared
def test_gsm8k_gold_solutions(shared_data: Path) -> None:
    """All 1,319 gold solutions score 1 against their own answer, and against the next item's only where they agree."""
    items = [json.loads(line) for line in (shared_data / "gsm8k" / "test.jsonl").read_text().splitlines()]
    golds = [item["answer"] for item in items]
    others = golds[1:] + golds[:1]
    own = grade(list(zip(golds, golds, strict=True)))
    assert len(own) == 1319
    assert Counter(g.outcome for g in own) == {Outcome.correct: 1319}
    crossed = grade(list(zip(golds, others, strict=True)))
    agree = [
        plain_number(final_answer(a) or "") == plain_number(final_answer(b) or "")
        for a, b in zip(golds, others, strict=True)
    ]
    assert [g.outcome is Outcome.correct for g in crossed] == agree
    assert {g.outcome for g in crossed} == {Outcome.correct, Outcome.wrong}


@pytest.mark.shared
def test_gsm8k_through_math_verify_itself(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact comparison of plain numbers is a shortcut: math-verify says the same."""
    import pipeline.rewards.verifiers as verifiers

    items = [json.loads(line) for line in (shared_data / "gsm8k" / "test.jsonl").read_text().splitlines()][:200]
    pairs = [
        (a["answer"], b["answer"].replace("#### ", "#### 0+"))
        for a, b in zip(items, items[1:] + items[:1], strict=True)
    ]
    quick = [Outcome.correct if final_answer(a) == (final_answer(b) or "")[2:] else Outcome.wrong for a, b in pairs]
    assert [g.outcome for g in verifiers.grade(pairs)] == quick
