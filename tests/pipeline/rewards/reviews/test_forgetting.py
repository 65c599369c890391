"""Who is forgotten, in every file of every week, and after a kill."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.recipe import Selection
from pipeline.removal import make
from pipeline.rewards import reviews
from pipeline.rewards.feedback import principal
from pipeline.storage import Store
from tests.pipeline.rewards.reviews.conftest import EVERYTHING, WEEK, filled, label, published, sample


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_forgetting_a_user_leaves_everybody_elses_reviews(store: Store, week: Path) -> None:
    filled(week, lambda row: "5")
    text = filled(week, lambda row: "4", "sheet-ann.csv").read_text("utf-8-sig")
    (week / "sheet-ann.csv").write_bytes(text.replace(",", ";").encode("utf-16"))
    (week / "sheet-bob.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sample(week).values()))
    (week / "sheet.xlsx").write_bytes(b"whatever")
    (week / "sheet.csv").chmod(0o600)
    theirs = [row for row in sample(week).values() if row["user_id"] == "user-3"]
    others = [line for line in (week / "sample.jsonl").read_bytes().splitlines() if b'"user-3"' not in line]
    value = make(reviews.removals(store, {"user-3", "somebody@else.example"}))
    place = f"rewards/reviews/{WEEK}"
    names = ("sheet-ann.csv", "sheet-bob.jsonl", "sheet.csv", "sample.jsonl")
    assert value == [f"{place}/{name}: {len(theirs)} lines" for name in names]
    assert (week / "sample.jsonl").read_bytes().splitlines() == others
    assert (week / "sheet.csv").stat().st_mode & 0o777 == 0o600
    assert reviews.unreadable(store) == [f"{place}/sheet.xlsx: it is no sheet"], "nobody knows whom it names"
    (week / "sheet.xlsx").unlink()
    left = bytes_of(week) + (week / "sheet-ann.csv").read_bytes().decode("utf-16").encode()
    for row in theirs:
        assert not [name for name in ("item", "trace_id", "completion") if row[name].encode() in left]
    assert {row["user_id"] for row in sample(week).values()} == {f"user-{n}" for n in (0, 1, 2, 4, 5, 6)}
    result = reviews.survey(store)
    assert result.problems == []
    assert {(each.score, each.reviewers) for each in result.reviewed} == {(0.875, 2)}
    assert len(result.reviewed) == 20 - len(theirs)
    assert make(reviews.removals(store, {"user-3"})) == []


def test_forgetting_heals_after_a_kill(store: Store, week: Path) -> None:
    filled(week, lambda row: "5", "sheet-ann.csv")
    for _ in range(2):  # killed after its first file
        next(iter(reviews.removals(store, {"user-3"}))).make()
    assert b"user-3" in bytes_of(store.root), "the sample tells whose rows the sheets have to lose"
    make(reviews.removals(store, {"user-3"}))
    assert b"user-3" not in bytes_of(store.root)
    assert not [row for row in ("t0003", "t0010", "t0017") if row.encode() in bytes_of(week)]
    assert make(reviews.removals(store, {"user-3"})) == []


def test_a_sheet_with_a_broken_quote_is_left_to_a_person(store: Store, week: Path) -> None:
    path = week / "sheet.csv"
    item = sample(week)["t0003"]["item"]
    before = path.read_bytes().replace(f'"{item}"'.encode(), f'"{item}'.encode())
    path.write_bytes(before)
    make(reviews.removals(store, {"user-3"}))
    assert path.read_bytes() == before
    (line,) = reviews.unreadable(store)
    assert "sheet.csv: rows ran together after a broken quote" in line


def test_a_cell_that_quotes_a_trace_is_no_owner(store: Store, tmp_path: Path) -> None:
    rows = [label(0, user_id="ann", trace_id="thumb"), label(1, user_id="bob", completion="thumb")]
    written = reviews.write(store, published(tmp_path, rows), WEEK, EVERYTHING, Selection())
    assert written is not None
    make(reviews.removals(store, {"ann"}))
    assert b"thumb" in written.read_bytes() and [row["user_id"] for row in sample(written.parent).values()] == ["bob"]


def test_a_user_who_is_called_like_a_session_is_forgotten(store: Store, tmp_path: Path) -> None:
    rows = [label(0, user_id="session:a"), label(1, user_id="user:session:a")]  # a session's rows, and a user's
    written = reviews.write(store, published(tmp_path, rows), WEEK, EVERYTHING, Selection())
    assert written is not None
    make(reviews.removals(store, {principal("session:a", None, "")}))
    assert list(sample(written.parent)) == ["t0000"]


def test_days_past_retention_are_dropped(store: Store, week: Path) -> None:
    assert reviews.drop_days(store, {"2026-01-01", "2026-01-02"})[-1].endswith("sample.jsonl: 8 lines")
    assert {row["day"] for row in sample(week).values()} == {"2026-01-03", "2026-01-04", "2026-01-05"}
    assert reviews.drop_days(store, {"2026-01-01"}) == []
