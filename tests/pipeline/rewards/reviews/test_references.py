"""The answers that people write on sheets: what is read, when two say the same, and when nothing may rest on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.removal import make
from pipeline.rewards import reviews
from pipeline.rewards.reviews import references, sheet
from pipeline.rewards.reviews.references import AnsweredRow, agreement, answered, doubts, meaning
from pipeline.storage import Store
from tests.pipeline.rewards.reviews.conftest import filled, sample


def row(*texts: str) -> AnsweredRow:
    return AnsweredRow({}, texts)


def test_references_are_read_from_every_reviewers_sheet(store: Store, week: Path) -> None:
    filled(week, lambda row: "", references=lambda row: "4" if row["trace_id"] < "t0010" else "")
    filled(week, lambda row: "5", "sheet-ann.csv", lambda row: "four" if row["trace_id"] == "t0003" else "")
    item = sample(week)["t0005"]["item"]
    lines = [{"item": item, "human_score": 3, "human_reference": 4}, {"item": "another", "human_reference": "7"}]
    (week / "sheet-bob.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (week / "sheet-cyd.csv").write_bytes(b"no sheet")
    by_trace = {each.row["trace_id"]: each for each in answered(store)}
    assert sorted(by_trace) == [f"t{n:04d}" for n in range(10)]
    assert sorted(by_trace["t0003"].references) == ["4", "four"]
    assert by_trace["t0003"].reference == "", "they do not agree"
    assert (by_trace["t0005"].references, by_trace["t0005"].reference) == (("4", "4"), "4")
    assert len(reviews.read(store)) == 20, "scores are read as before"


def test_a_sheet_of_before_has_no_references() -> None:
    assert list(sheet.references(b"item,human_score,comment\r\na,1,x\r\n", json_lines=False)) == []


@pytest.mark.parametrize("text", ["-5", "=5", "+5", "@home"])
def test_an_answer_that_a_spreadsheet_took_for_a_formula_is_read(text: str) -> None:
    (read,) = sheet.references(f"item,human_score,human_reference\r\na,,'{text}\r\n".encode(), json_lines=False)
    assert read.reference == text


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1,200", "1200.0", True),
        ("#### 7", "The answer is 7.", True),
        ("Paris", "  paris. ", True),
        ("the Alps", "Alps", True),
        ("7", "8", False),
        ("-5", "5", False),
        ("Paris", "London", False),
    ],
)
def test_what_two_references_mean(one: str, other: str, same: bool) -> None:
    assert (meaning(one) == meaning(other)) is same


def test_agreement_is_krippendorffs_alpha() -> None:
    """The worked example in "Computing Krippendorff's Alpha-Reliability" (2011), sections A and C."""
    meg, owen = "0100000010", "1110010000"
    assert agreement([row(*pair) for pair in zip(meg, owen, strict=True)]) == pytest.approx(0.095, abs=0.0005)
    observers = (
        "1 2 3 3 2 1 4 1 2 - - -",
        "1 2 3 3 2 2 4 1 2 5 - 3",
        "- 3 3 3 2 3 4 2 2 5 1 -",
        "1 2 3 3 2 4 4 1 2 5 1 -",
    )
    units = zip(*(each.split() for each in observers), strict=True)
    several = [row(*(value for value in unit if value != "-")) for unit in units]
    assert agreement(several) == pytest.approx(0.743, abs=0.0005)


def test_agreement_of_one_value_alone_is_none() -> None:
    assert agreement([row("1", "1")] * 9) is None
    assert agreement([row("1", "2"), row("1")]) is None


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], ("too few, or all the same",)),
        ([row("1")] * 20, ("two people answered 0 of 20 rows, and 10% are needed", "a second one")),
        ([row("1", "1")] * 2 + [row("1")] * 18, ("too few, or all the same",)),
        ([row("1", "2"), row("2", "1")] + [row("3")] * 8, ("Krippendorff's alpha -0.50, at least 0.6",)),
    ],
)
def test_doubts_say_what_to_do(rows: list[AnsweredRow], words: tuple[str, ...]) -> None:
    assert all(word in doubts(rows) for word in words)


def test_agreement_that_is_high_enough_leaves_no_doubt() -> None:
    rows = [row(str(n), str(n)) for n in range(10)] + [row("a", "b")] + [row("1")] * 80
    assert agreement(rows) == pytest.approx(0.905, abs=0.001)
    assert doubts(rows) == ""
    assert references.MIN_TWICE == 0.1


def test_forgetting_takes_the_answers_too(store: Store, week: Path) -> None:
    filled(week, lambda row: "", references=lambda row: f"answer to {row['trace_id']}")
    make(reviews.removals(store, {"user-3"}))
    assert {each.row["user_id"] for each in answered(store)} == {f"user-{n}" for n in (0, 1, 2, 4, 5, 6)}
    assert b"answer to t0003" not in b"".join(path.read_bytes() for path in week.iterdir())
