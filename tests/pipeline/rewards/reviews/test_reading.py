"""The week as it is written, and scores as they are read back from whatever people save."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime
from pathlib import Path

import pytest

from pipeline.conversation import to_prompt
from pipeline.recipe import Selection
from pipeline.recipe.rewards import Review
from pipeline.rewards import reviews
from pipeline.rewards.reviews import sheet
from pipeline.storage import Store
from tests.pipeline.rewards.reviews.conftest import EVERYTHING, WEEK, filled, label, published, sample
from tests.pipeline.shown_calls import (
    CALLING,
    CALLING_SHOWN,
    EMPTY,
    EMPTY_SHOWN,
    LONG,
    LONG_TEXT,
    PARALLEL,
    PARALLEL_SHOWN,
)
from tests.pipeline.tool_templates import calls


def test_a_sheet_shows_neither_reward_nor_stratum_nor_user(week: Path) -> None:
    shown = (week / "sheet.csv").read_text("utf-8-sig")
    assert "user-" not in shown
    assert not [word for word in ("reward", "random", "edge", "0.888") if word in shown]
    rows = list(csv.DictReader(io.StringIO(shown, newline="")))
    assert tuple(rows[0]) == sheet.COLUMNS
    assert {(row["prompt"], row["human_score"], row["comment"]) for row in rows} == {("user: 2+2?", "", "")}
    kept = sample(week)
    assert [row["trace_id"] for row in rows] != sorted(kept)
    assert {kept[row["trace_id"]]["item"] for row in rows} == {row["item"] for row in rows}
    assert {"user_id", "stratum", "final_reward", "why", "week", "iteration"} <= set(kept["t0003"])


def test_a_reviewer_reads_calls_and_their_results(store: Store, tmp_path: Path) -> None:
    question = {"role": "user", "content": "And C3?"}
    long = {"role": "assistant", "content": "", "tool_calls": calls(("note", {"text": LONG_TEXT}))}
    rows = [
        label(1, prompt=to_prompt(CALLING), completion=PARALLEL),
        label(2, prompt=to_prompt([question, long, question]), completion=EMPTY),
        label(3, completion=LONG),
    ]
    written = reviews.write(store, published(tmp_path, rows), WEEK, EVERYTHING, Selection())
    assert written is not None
    read = csv.DictReader(io.StringIO(written.read_text("utf-8-sig"), newline=""))
    cells = {row["trace_id"]: row for row in read}
    roles = ("tools", "user", "assistant", "tool", "tool")
    asked = "\n\n".join(f"{role}: {text}" for role, text in zip(roles, CALLING_SHOWN, strict=True))
    assert (cells["t0001"]["prompt"], cells["t0001"]["completion"]) == (asked, PARALLEL_SHOWN)
    prompt = cells["t0002"]["prompt"]
    assert prompt.startswith('user: And C3?\n\nassistant: call: note({"text": "xxx')
    assert prompt.endswith('xxx"})\n\nuser: And C3?'), "the question is not what is cut"
    assert cells["t0002"]["completion"] == EMPTY_SHOWN
    answered = cells["t0003"]["completion"]
    assert answered.startswith('call: note({"text": "xxx') and "characters are cut" in answered


def test_a_week_is_drawn_once(store: Store, week: Path, tmp_path: Path) -> None:
    content = filled(week, lambda row: "3").read_bytes()
    other = published(tmp_path / "other", [label(at) for at in range(50, 60)])
    assert reviews.write(store, other, WEEK, EVERYTHING, Selection()) == week / "sheet.csv"
    assert (week / "sheet.csv").read_bytes() == content
    assert len(sample(week)) == 20
    assert reviews.write(store, other, "2026-W48", EVERYTHING, Selection()) == store.path(
        "rewards/reviews/2026-W48/sheet.csv"
    )


def test_nothing_to_ask_about_is_no_sheet(store: Store, tmp_path: Path) -> None:
    assert reviews.write(store, published(tmp_path, [label(0)]), WEEK, Review(share=0.0), Selection()) is None
    assert reviews.read(store) == []


@pytest.mark.parametrize(
    ("written", "score"), [("1", 0.0), ("5", 1.0), (" 4.0 ", 0.75), ("4,5", 0.875), ("3", 0.5), ("\uff14", 0.75)]
)
def test_a_score_of_1_to_5_is_mapped_to_0_to_1(store: Store, week: Path, written: str, score: float) -> None:
    filled(week, lambda row: written if row["trace_id"] == "t0007" else "")
    (result,) = reviews.read(store)
    assert result == reviews.ReviewedLabel(WEEK, "t0007", "o", "random", reward=7 / 9, score=score, reviewers=1)


@pytest.mark.parametrize("written", ["0", "6", "good", "nan", "inf", "-1", "04. Mai", "1e9", "4/5", "x" * 9_000])
def test_a_typo_is_told_and_stops_nothing(store: Store, week: Path, written: str) -> None:
    filled(week, lambda row: written if row["trace_id"] == "t0007" else "2")
    result = reviews.survey(store)
    assert len(result.reviewed) == 19
    (problem,) = result.problems
    assert problem.startswith(f"{week / 'sheet.csv'}: row ")
    assert repr(written[:40]) in problem
    assert problem.endswith("Write a number from 1 to 5, or leave it empty.")
    assert result.asked == {WEEK: {"random": 20}}


def test_a_problem_names_the_row_as_a_spreadsheet_numbers_it() -> None:
    content = b'item,human_score,comment\r\na,1,"two\nlines"\r\nb,,\r\nc,seven,\r\n'
    *_, problem = sheet.answers(content, json_lines=False)
    assert problem.problem.startswith("row 4: human_score is 'seven'")


@pytest.mark.parametrize(
    ("encoding", "comment"),
    [("utf-8", "schön"), ("utf-8-sig", "schön"), ("utf-16", "schön"), ("cp1252", "schön"), ("cp949", "좋다")],
)
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_sheets_are_read_as_spreadsheets_save_them(
    store: Store, week: Path, delimiter: str, encoding: str, comment: str
) -> None:
    header, *rows = csv.reader(io.StringIO((week / "sheet.csv").read_text("utf-8-sig"), newline=""))
    out = io.StringIO(f"sep={delimiter}\r\n", newline="")
    out.seek(0, io.SEEK_END)
    csv.writer(out, delimiter=delimiter).writerows([header, *([*row[:5], "4,5", comment] for row in rows)])
    (week / "sheet.csv").write_bytes(out.getvalue().encode(encoding))
    result = reviews.survey(store)
    assert result.problems == []
    assert [each.score for each in result.reviewed] == [0.875] * 20


def test_several_reviewers_are_averaged_in_any_format(store: Store, week: Path) -> None:
    filled(week, lambda row: "5" if row["trace_id"] == "t0001" else "", "sheet-ann.csv")
    item = sample(week)["t0001"]["item"]
    lines = [{"item": item, "human_score": 2}, {"trace_id": "t0002", "human_score": "1"}, {"item": item}]
    (week / "sheet-bob.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "\n")
    by_name = {each.trace_id: (each.score, each.reviewers) for each in reviews.read(store)}
    assert by_name == {"t0001": (0.625, 2), "t0002": (0.0, 1)}


def test_a_sheet_cannot_change_what_was_asked(store: Store, week: Path) -> None:
    before = sample(week)
    rows = [{**row, "stratum": "edge", "final_reward": 1.0, "human_score": 5} for row in before.values()]
    rows += [{"item": "unheardof", "trace_id": "t9999", "human_score": 5}]
    (week / "sheet.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = reviews.survey(store)
    assert {(each.stratum, each.reward) for each in result.reviewed} == {
        (row["stratum"], row["final_reward"]) for row in before.values()
    }
    (problem,) = result.problems
    assert "'unheardof', trace_id 't9999' is not of this week" in problem


@pytest.mark.parametrize(
    "content",
    [b"", b"a,b\r\n1,2\r\n", b"\x00\xff\xfe" * 50, b"\xff\xfe\x00", b'item,human_score\r\n"' + b"x" * 200_000],
)
def test_what_is_no_sheet_is_told_and_stops_nothing(store: Store, week: Path, content: bytes) -> None:
    (week / "sheet-new.csv").write_bytes(content)
    filled(week, lambda row: "5")
    result = reviews.survey(store)
    assert len(result.reviewed) == 20
    (problem,) = result.problems
    assert problem.startswith(f"{week / 'sheet-new.csv'}: ")


def test_a_broken_sample_is_told_and_stops_nothing(store: Store, week: Path) -> None:
    filled(week, lambda row: "5")
    with (week / "sample.jsonl").open("a") as stream:
        stream.write('{"item": \n[]\n')
    result = reviews.survey(store)
    assert len(result.reviewed) == 20
    assert "2 lines cannot be read" in result.problems[0]


@pytest.mark.parametrize(
    ("moment", "week"),
    [("2026-11-21T12:00+00:00", "2026-W47"), ("2027-01-01", "2026-W53"), ("2026-11-22T23:30-05:00", "2026-W48")],
)
def test_weeks_are_iso_weeks_in_utc(moment: str, week: str) -> None:
    assert reviews.week_of(datetime.fromisoformat(moment)) == week
