"""A week of reviews: drawn, shown, read back from what people save, and forgotten."""

import csv
import io
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.removal import make
from pipeline.core.storage import DatasetRef, Store
from pipeline.rewards import reviews
from pipeline.rewards.records import LABELS, RewardLabels

WEEK = "2026-W47"
CELLS = st.text() | st.text(alphabet="=+-@,;\t\r\n\"' a1|\ufeff\x00\u2028\uff1d")


def label(at: int, **changes: Any) -> dict[str, Any]:
    row = {
        "trace_id": f"t{at:04d}",
        "observation_id": "o",
        "day": f"2026-01-0{1 + at % 5}",
        "user_id": f"user-{at % 7}",
    }
    row |= {"timestamp": datetime(2026, 1, 5, tzinfo=UTC), "prompt": json.dumps([{"role": "user", "content": "2+2?"}])}
    row |= {"completion": f"It is {at}.", "reference": "4", "final_reward": at % 10 / 9, "reason": "", "missing": "{}"}
    return {**row, **changes}


def published(folder: Path, rows: list[dict[str, Any]]) -> RewardLabels:
    """A label table on disk, and as much of its record as a review reads."""
    (folder / "labels").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=LABELS), folder / "labels" / "part.parquet")
    dataset = DatasetRef(uri=str(folder / "labels"), rows=len(rows), digest="d")
    return RewardLabels.model_construct(iteration="i", dataset=dataset)


def drawn(store: Store, folder: Path, *rows: dict[str, Any], most: int = 200) -> Path:
    """The sheet of a week with these labels."""
    written = reviews.write(store, published(folder, list(rows)), WEEK, most)
    assert written is not None
    return written


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


@pytest.fixture
def sheet(store: Store, tmp_path: Path) -> Path:
    """The sheet of a week in which 20 labels are asked about."""
    return drawn(store, tmp_path, *map(label, range(20)))


def rows_of(sheet: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(sheet.read_text("utf-8-sig"), newline="")))


def sample(sheet: Path) -> dict[str, dict[str, Any]]:
    """The kept rows by trace."""
    rows = map(json.loads, sheet.with_name("sample.jsonl").read_text().splitlines())
    return {row["trace_id"]: row for row in rows}


def fill(sheet: Path, change: Callable[[dict[str, str]], dict[str, str]], delimiter: str = ",") -> None:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, reviews.COLUMNS, delimiter=delimiter)
    writer.writeheader()
    writer.writerows({**row, **change(row)} for row in rows_of(sheet))
    sheet.write_text(out.getvalue(), "utf-8-sig", newline="")


def test_a_sheet_shows_neither_reward_nor_user(sheet: Path) -> None:
    text = sheet.read_text("utf-8-sig")
    assert not [word for word in ("user-", "reward", "0.888") if word in text]
    rows = rows_of(sheet)
    assert tuple(rows[0]) == reviews.COLUMNS
    assert {(row["prompt"], row["expected"], row["score"], row["reference"]) for row in rows} == {
        ("user: 2+2?", "4", "", "")
    }
    assert {sample(sheet)[row["trace_id"]]["item"] for row in rows} == {row["item"] for row in rows}


def test_labelled_rows_are_drawn_at_random_and_the_same_again(tmp_path: Path) -> None:
    rows = [*map(label, range(40)), *(label(at, final_reward=None) for at in range(40, 60))]
    draws = [sample(drawn(Store(tmp_path / name), tmp_path, *rows, most=15)).keys() for name in ("a", "b")]
    assert draws[0] == draws[1] and len(draws[0]) == 15
    assert max(draws[0]) < "t0040" and draws[0] != {f"t{at:04d}" for at in range(15)}


def test_nothing_to_ask_about_is_no_sheet(store: Store, tmp_path: Path) -> None:
    assert reviews.write(store, published(tmp_path, [label(0, final_reward=None)]), WEEK, 200) is None
    assert reviews.survey(store) == ([], [], [])


@pytest.mark.parametrize(
    ("written", "score"), [("1", 0.0), ("5", 1.0), (" 4.0 ", 0.75), ("4,5", 0.875), ("\uff14", 0.75)]
)
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_score_of_1_to_5_is_mapped_to_0_to_1(
    store: Store, sheet: Path, written: str, score: float, delimiter: str
) -> None:
    fill(sheet, lambda row: {"score": written if row["trace_id"] == "t0007" else ""}, delimiter)
    assert reviews.survey(store).reviewed == [reviews.ReviewedLabel("t0007", "o", score)]


@pytest.mark.parametrize("written", ["0", "6", "good", "nan", "inf", "-1", "04. Mai", "4/5", "x" * 9_000])
def test_a_wrong_score_is_named_and_stops_nothing(store: Store, sheet: Path, written: str) -> None:
    fill(sheet, lambda row: {"score": written if row["trace_id"] == "t0007" else "2"})
    result = reviews.survey(store)
    assert len(result.reviewed) == 19
    (problem,) = result.problems
    number = [row["trace_id"] for row in rows_of(sheet)].index("t0007") + 2
    assert (
        problem == f"{sheet}: row {number}: score is {written[:40]!r}. Write a number from 1 to 5, or leave it empty."
    )


def test_references_are_read_with_the_row_that_was_drawn(store: Store, sheet: Path) -> None:
    fill(sheet, lambda row: {"reference": "'-4" if row["trace_id"] == "t0003" else "", "trace_id": "changed"})
    (row,) = reviews.survey(store).answered
    assert (row["trace_id"], row["user_id"], row["reference"]) == ("t0003", "user-3", "-4")


@pytest.mark.parametrize("content", [b"", b"a,b\r\n1,2\r\n", b"\xff\xfe\x00"])
def test_what_is_no_sheet_is_named_and_never_edited(store: Store, sheet: Path, content: bytes) -> None:
    sheet.write_bytes(content)
    (problem,) = reviews.survey(store).problems
    assert problem.startswith(f"{sheet}: ")
    make(reviews.removals(store, {"user-3"}))
    assert sheet.read_bytes() == content and len(reviews.unreadable(store)) == 1


@settings(max_examples=60)
@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=5))
def test_any_text_goes_through_a_sheet_and_is_no_formula_in_it(texts: list[tuple[str, str, str]]) -> None:
    names = ("trace_id", "prompt", "completion")
    rows = [{"item": f"item{chr(97 + at)}", **dict(zip(names, each, strict=True))} for at, each in enumerate(texts)]
    text = reviews.render(rows).decode("utf-8-sig")
    for row, back in zip(rows, csv.DictReader(io.StringIO(text, newline="")), strict=True):
        assert back["item"] == row["item"]
        for name in names:
            # Apostrophes aside, what is read is what was written; line ends are line feeds, controls are spaces.
            lines = re.sub(
                r"[\x00-\x1f\x7f]", " ", "\n".join(row[name].replace("'", "").splitlines()).replace("\n", "\u0378")
            )
            assert back[name].replace("'", "") == lines.replace("\u0378", "\n")
    for delimiter in ",;\t":  # whatever a spreadsheet takes for the separator
        for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
            assert not [cell for cell in line if re.match(r"[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]", cell.lstrip(' "'))]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("\t=1", "' =1"),
        ('"x";=cmd', '"x";\'=cmd'),
        ("f(3,-4) = a - b", "f(3,-4) = a - b"),
        ("a\n- one\n  - two", "a\n'- one\n'  - two"),
        ("\x00=1\x1b", "' =1 "),
        ("x" * 40_000, f"{'x' * 15_000}… (10,000 characters are cut) …{'x' * 15_000}"),
    ],
)
def test_what_could_begin_a_cell_is_no_formula(text: str, cell: str) -> None:
    assert reviews.shown(text) == cell


def test_forgetting_a_user_leaves_everybody_elses_reviews(store: Store, sheet: Path) -> None:
    fill(sheet, lambda row: {"score": "4", "reference": f"answer to {row['trace_id']}"}, ";")
    sheet.with_name("sheet.xlsx").write_bytes(b"whatever")
    theirs = [row for row in sample(sheet).values() if row["user_id"] == "user-3"]
    place = f"rewards/reviews/{WEEK}"
    next(iter(reviews.removals(store, {"user-3"}))).make()  # killed after its first file
    assert make(reviews.removals(store, {"user-3", "somebody@else.example"})) == [f"{place}/sample.jsonl: 3 lines"]
    left = sheet.read_bytes() + sheet.with_name("sample.jsonl").read_bytes()
    for row in theirs:
        assert not [name for name in ("item", "trace_id", "completion") if row[name].encode() in left]
    result = reviews.survey(store)
    assert (len(result.reviewed), len(result.answered), result.problems) == (17, 17, [])
    assert reviews.unreadable(store) == [f"{place}/sheet.xlsx: it is no sheet"], "nobody knows whom it names"
    assert make(reviews.removals(store, {"user-3"})) == []


def test_days_past_retention_are_dropped(store: Store, sheet: Path) -> None:
    assert reviews.drop_days(store, {"2026-01-01", "2026-01-02"})[-1].endswith("sample.jsonl: 8 lines")
    assert {row["day"] for row in sample(sheet).values()} == {"2026-01-03", "2026-01-04", "2026-01-05"}
