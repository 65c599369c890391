"""Who is forgotten, in every file of every week, and after a kill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline import layout
from pipeline.recipe import Selection
from pipeline.rewards import reviews
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
    theirs = [row for row in sample(week).values() if row["user_id"] == "user-3"]
    value = list(reviews.forget(store, {"user-3", "somebody@else.example"}))
    place = f"rewards/reviews/{WEEK}"
    names = ("sheet-ann.csv", "sheet-bob.jsonl", "sheet.csv")
    assert value[:-2] == [f"{place}/{name}: {len(theirs)} lines" for name in names]
    assert value[-2:] == [f"{place}/sheet.xlsx: removed", f"{place}/sample.jsonl: {len(theirs)} lines"]
    left = bytes_of(week) + (week / "sheet-ann.csv").read_bytes().decode("utf-16").encode()
    for row in theirs:
        assert not [name for name in ("item", "trace_id", "completion") if row[name].encode() in left]
    assert {row["user_id"] for row in sample(week).values()} == {f"user-{n}" for n in (0, 1, 2, 4, 5, 6)}
    result = reviews.survey(store)
    assert result.problems == []
    assert {(each.score, each.reviewers) for each in result.reviewed} == {(0.875, 2)}
    assert len(result.reviewed) == 20 - len(theirs)
    assert list(reviews.forget(store, {"user-3"})) == []


def test_forgetting_heals_after_a_kill(store: Store, week: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(week, lambda row: "5", "sheet-ann.csv")
    (store.path(layout.REVIEWS) / f".{WEEK}.killed").mkdir()
    (store.path(layout.REVIEWS) / f".{WEEK}.killed" / "sample.jsonl").write_bytes((week / "sample.jsonl").read_bytes())
    write, done = reviews.write_atomically, 0

    class Killed(BaseException):
        pass

    def until(path: Path, content: bytes) -> None:
        nonlocal done
        done += 1
        if done in stops:
            raise Killed
        write(path, content)

    monkeypatch.setattr(reviews, "write_atomically", until)
    stops = {1, 3, 5}
    for _ in stops:
        with pytest.raises(Killed):
            list(reviews.forget(store, {"user-3"}))
    assert list(reviews.forget(store, {"user-3"}))
    assert b"user-3" not in bytes_of(store.root)
    assert not [row for row in ("t0003", "t0010", "t0017") if row.encode() in bytes_of(week)]
    assert list(reviews.forget(store, {"user-3"})) == []


def test_a_sheet_with_a_broken_quote_loses_all_that_ran_together(store: Store, week: Path) -> None:
    path = week / "sheet.csv"
    item = sample(week)["t0003"]["item"]
    content = path.read_bytes()
    path.write_bytes(content.replace(f'"{item}"'.encode(), f'"{item}'.encode()))
    list(reviews.forget(store, {"user-3"}))
    assert b"It is 3." not in path.read_bytes()


def test_a_user_who_is_called_like_a_session_is_forgotten(store: Store, tmp_path: Path) -> None:
    rows = [label(0, user_id="session:a"), label(1, user_id="user:session:a")]  # a session's rows, and a user's
    written = reviews.write(store, published(tmp_path, rows), WEEK, EVERYTHING, Selection())
    assert written is not None
    list(reviews.forget(store, {"session:a"}))
    assert list(sample(written.parent)) == ["t0000"]


def test_days_past_retention_are_dropped(store: Store, week: Path) -> None:
    assert reviews.drop_days(store, {"2026-01-01", "2026-01-02"})[-1].endswith("sample.jsonl: 8 lines")
    assert {row["day"] for row in sample(week).values()} == {"2026-01-03", "2026-01-04", "2026-01-05"}
    assert reviews.drop_days(store, {"2026-01-01"}) == []
