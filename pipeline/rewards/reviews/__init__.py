"""The weekly review: labels that people score, so that the reward can be held against people.

Owns `rewards/reviews/<week>/` in the store: `sample.jsonl` is what was drawn and stays ours; `sheet.csv` is for people,
who fill it in or save copies beside it (`sheet-*.csv`, `sheet-*.jsonl`), one a reviewer. A sample is drawn once a week
and then never changed, except to forget somebody. Scores are read from sheets, everything else from the sample, so a
sheet cannot change what was asked. Refuses to judge by the scores: `trust` does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.conversation import shown_answer
from pipeline.recipe import Selection
from pipeline.recipe.rewards import DEFAULT_RUBRIC, Review
from pipeline.removal import Removal, make, of_lines
from pipeline.rewards.findings import key_of
from pipeline.rewards.records import RewardLabels
from pipeline.rewards.reviews import sheet, strata
from pipeline.rewards.trust import ReviewedLabel, chat
from pipeline.storage import DatasetRef, Store, write_atomically

SAMPLE, SHEET, RUBRIC = "sample.jsonl", "sheet.csv", "rubric.txt"
HOW = """\
Score each completion in sheet.csv, in the column human_score, from 1 to 5; 4.5 is a score too. Leave it empty where you
cannot tell. In human_reference write the answer that you would give, the answer alone, where you know it: a golden
suite is made of these, and wants one row in ten answered by two of you. Do both on your own, before you hear what
others say. Save as CSV, here, under the same name or, if several of you review, each as sheet-<name>.csv. An apostrophe
before = + - or @ is ours: it keeps spreadsheets from taking a text for a formula. Long texts are cut; they are whole in
sample.jsonl.

"""
Row = dict[str, Any]


class Survey(NamedTuple):
    """What the sheets hold."""

    reviewed: list[ReviewedLabel]
    problems: list[str]
    """What could not be used, and what to write instead; it stops nothing."""
    asked: dict[str, Counter[str]]
    """Rows of each week's sample, by stratum."""


def week_of(moment: datetime) -> str:
    """The ISO week in UTC, as in 2026-W47."""
    year, week, _ = (moment.astimezone(UTC) if moment.tzinfo else moment).isocalendar()
    return f"{year}-W{week:02d}"


def write(
    store: Store,
    labels: RewardLabels,
    week: str,
    settings: Review,
    selection: Selection,
    rubric: str = DEFAULT_RUBRIC,
) -> Path | None:
    """Draw the week's sample and publish its sheet; the sheet's path, or None where there is nothing to ask about.

    `selection`: rewards near the thresholds of its pairs are asked about. A week that has a sheet keeps it. Raises
    FileNotFoundError when the label table is gone.
    """
    folder = f"{layout.REVIEWS}/{week}"
    if not store.path(folder).is_dir():
        table = pq.read_table(labels.dataset.uri, columns=list(strata.COLUMNS))
        picks = strata.draw(table, settings, week, labels.dataset.digest, selection.chosen_min, selection.rejected_max)
        if not picks:
            return None
        rows = _rows(labels.dataset, picks, week, labels.iteration)
        with store.staged(folder) as staging:
            (staging / SAMPLE).write_bytes(b"".join(_line(row) for row in rows))
            (staging / SHEET).write_bytes(sheet.render(_asked(row) for row in rows))
            (staging / RUBRIC).write_text(f"{HOW}{rubric}\n", encoding="utf-8")
    return store.path(folder, SHEET)


def read(store: Store) -> list[ReviewedLabel]:
    """Every row that people have scored."""
    return survey(store).reviewed


def survey(store: Store) -> Survey:
    """Every week's sheets, read against its sample. Several scores of a row count as their mean."""
    survey_result = Survey([], [], {})
    for folder in weeks(store):
        lines = list(sample_of(folder))
        sample = [row for row in lines if row]
        if len(sample) < len(lines):
            broken = f"{len(lines) - len(sample)} lines cannot be read. Restore it from a backup."
            survey_result.problems.append(f"{folder / SAMPLE}: {broken}")
        survey_result.asked[folder.name] = Counter(row["stratum"] for row in sample)
        by_key = {row["trace_id"]: row for row in sample} | {row["item"]: row for row in sample}
        scores: dict[str, list[float]] = {}
        for path in sheets_of(folder):
            for answer in _answers(path):
                row = by_key.get(answer.item) or by_key.get(answer.trace_id.removeprefix("'"))
                if answer.problem:
                    survey_result.problems.append(f"{path}: {answer.problem}")
                elif row is None:
                    named = f"item {answer.item[:40]!r}, trace_id {answer.trace_id[:40]!r}"
                    survey_result.problems.append(f"{path}: {named} is not of this week. Copy both from {SHEET}.")
                else:
                    scores.setdefault(row["item"], []).append(answer.score)
        survey_result.reviewed.extend(
            ReviewedLabel(
                week=folder.name,
                trace_id=row["trace_id"],
                observation_id=row["observation_id"],
                stratum=row["stratum"],
                reward=row["final_reward"],
                score=sum(scores[row["item"]]) / len(scores[row["item"]]),
                reviewers=len(scores[row["item"]]),
            )
            for row in sample
            if row["item"] in scores
        )
    return survey_result


def labels_of(labels: DatasetRef, reviewed: Sequence[ReviewedLabel]) -> pa.Table:
    """The rows of a label table that `trust.human_agreement` needs for these reviews."""
    import pyarrow.dataset as ds

    wanted = ds.field("trace_id").isin(pa.array([review.trace_id for review in reviewed], pa.string()))
    columns = ["trace_id", "observation_id", "final_reward"]
    return ds.dataset(labels.uri, format="parquet").to_table(columns=columns, filter=wanted)


def removals(store: Store, principals: Collection[str]) -> Iterator[Removal]:
    """The rows of these principals, in samples and sheets."""
    return _removals(store, lambda row: row["user_id"] in principals)


def drop_days(store: Store, days: Collection[str]) -> list[str]:
    """Retention: the rows of these days; `name: n lines` of each file."""
    return make(_removals(store, lambda row: row["day"] in days))


def unreadable(store: Store) -> list[str]:
    """What lies beside samples and is no sheet that can be read: nobody knows whom it names, so it is never edited."""
    lines: list[str] = []
    for folder in weeks(store):
        items = {row["item"] for row in sample_of(folder) if row}
        for path in sorted(set(folder.iterdir()) - {folder / SAMPLE, folder / RUBRIC}):
            try:
                if path not in sheets_of(folder):
                    raise ValueError("it is no sheet")
                sheet.without(path.read_bytes(), items, (), (), path.suffix == ".jsonl")
            except ValueError as error:
                lines.append(f"{path.relative_to(store.root)}: {error}")
    return lines


def _rows(labels: DatasetRef, picks: Sequence[strata.SampledRow], week: str, iteration: str) -> list[Row]:
    """The picks as they are kept, in the order of their items, which says nothing of their stratum."""
    import pyarrow.dataset as ds

    theirs = {(pick.trace_id, pick.observation_id): pick for pick in picks}
    wanted = ds.field("trace_id").isin([pick.trace_id for pick in picks])
    table = ds.dataset(labels.uri, format="parquet").to_table(filter=wanted)
    rows: list[Row] = []
    for row in table.to_pylist():
        pick = theirs.get((row["trace_id"], row["observation_id"]))
        if pick is not None:
            item = key_of("item", week, labels.digest, pick.trace_id, pick.observation_id)[:12]
            drawn = {"stratum": pick.stratum, "why": pick.why, "week": week, "iteration": iteration}
            rows.append({"item": item.translate(_LETTERS), **drawn, **row})
    return sorted(rows, key=lambda row: row["item"])


_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")


def _asked(row: Row) -> dict[str, str]:
    cells = {name: str(row[name] or "") for name in ("item", "trace_id", "completion", "reference")}
    return {**cells, "completion": shown_answer(cells["completion"]), "prompt": chat(row["prompt"])}


def _answers(path: Path) -> Iterator[sheet.ReviewAnswer]:
    try:
        yield from sheet.answers(path.read_bytes(), path.suffix == ".jsonl")
    except (ValueError, OSError) as error:
        yield sheet.ReviewAnswer("", "", 0.0, f"{error}")


def _removals(store: Store, gone: Callable[[Row], bool]) -> Iterator[Removal]:
    for folder in weeks(store):
        rows = [row for row in sample_of(folder) if row]
        theirs = [row for row in rows if gone(row)]
        others = {row["item"] for row in rows if not gone(row)}
        items, traces = ({row[name] for row in theirs} for name in ("item", "trace_id"))
        for path in sheets_of(folder) if theirs else ():
            with suppress(ValueError):  # `unreadable` says so
                content, lines = sheet.without(path.read_bytes(), items, traces, others, path.suffix == ".jsonl")
                if lines:
                    name = str(path.relative_to(store.root))
                    yield Removal(name, lines, partial(write_atomically, path, content))
        # The sample goes last: after a kill it still tells which rows the sheets have to lose.
        yield from of_lines(store, folder / SAMPLE, lambda line: bool(row := _row_of(line)) and gone(row))


def weeks(store: Store) -> list[Path]:
    """The folders of all weeks, in order."""
    return sorted(path.parent for path in store.path(layout.REVIEWS).glob(f"[0-9]*/{SAMPLE}"))


def sheets_of(folder: Path) -> list[Path]:
    """A week's sheets, one a reviewer."""
    return sorted([*folder.glob("sheet*.csv"), *folder.glob("sheet*.jsonl")])


def sample_of(folder: Path) -> Iterator[Row]:
    """A week's rows as they were drawn; an empty one for a line that is none."""
    yield from map(_row_of, (folder / SAMPLE).read_bytes().splitlines())


def _row_of(line: bytes) -> Row:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) and {"item", "trace_id", "user_id", "day"} <= row.keys() else {}


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n"
