"""The weekly review: a random sample of labels that a person scores and answers, in one CSV file.
`rewards/reviews/<week>/`: `sample.jsonl` has the rows as drawn; of `sheet.csv` item, score and reference are read."""

import codecs
import csv
import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from heapq import nsmallest
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.core import layout
from pipeline.core.conversation import shown as shown_turns
from pipeline.core.conversation import shown_answer
from pipeline.core.removal import Removal, make, of_lines
from pipeline.core.storage import Store, write_atomically
from pipeline.rewards.findings import key_of
from pipeline.rewards.records import RewardLabels

SAMPLE, SHEET = "sample.jsonl", "sheet.csv"
COLUMNS = ("item", "trace_id", "prompt", "completion", "expected", "score", "reference")
"""`item` is a key of letters alone: spreadsheets turn ids like 12e4 or 0042 into numbers."""
MAX_CELL = 30_000
"""Excel's limit is 32,767 characters a cell; the whole text is in the sample."""
Row = dict[str, Any]

_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What begins a formula; full-width ones do in East Asian versions."""
_CONTROLS = dict.fromkeys([*range(32), 0x7F], " ")
_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")


class ReviewedLabel(NamedTuple):
    """One label of a weekly sample that a person has scored, in [0, 1]."""

    trace_id: str
    observation_id: str
    score: float


class Survey(NamedTuple):
    """What the sheets of all weeks hold."""

    reviewed: list[ReviewedLabel]
    answered: list[Row]
    """The sample's rows (columns of LABELS) for which a person wrote a reference, with that reference."""
    problems: list[str]
    """What could not be used, and what to write instead; it stops nothing."""


def week_of(moment: datetime) -> str:
    """The ISO week in UTC, as in 2026-W47."""
    return (moment.astimezone(UTC) if moment.tzinfo else moment).strftime("%G-W%V")


def write(store: Store, labels: RewardLabels, week: str, most: int) -> Path | None:
    """Draw the week's sample and publish its sheet; the sheet's path, or None where there is nothing to ask about.

    A week that has a sheet keeps it. Raises FileNotFoundError when the label table is gone.
    """
    folder = f"{layout.REVIEWS}/{week}"
    if not store.path(folder).is_dir():
        rows = _drawn(labels, week, most)
        if not rows:
            return None
        with store.staged(folder) as staging:
            lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
            (staging / SAMPLE).write_bytes("".join(lines).encode("utf-8", "surrogatepass"))
            (staging / SHEET).write_bytes(render(map(_asked, rows)))
    return store.path(folder, SHEET)


def survey(store: Store) -> Survey:
    """Every week's sheet, read against its sample."""
    result = Survey([], [], [])
    for folder in _weeks(store):
        sample, path = {row["item"]: row for row in _sample(folder)}, folder / SHEET
        try:
            (names, *rows), _ = _cells(path)
        except (ValueError, OSError) as error:
            result.problems.append(f"{path}: {error}")
            continue
        for number, cells in enumerate(rows, 2):
            row = {**dict.fromkeys(COLUMNS, ""), **dict(zip(names, map(str.strip, cells), strict=False))}
            if drawn := sample.get(row["item"]):
                if reference := row["reference"].removeprefix("'").strip():
                    result.answered.append({**drawn, "reference": reference})
                try:
                    if (score := _score(row["score"])) is not None:
                        result.reviewed.append(ReviewedLabel(drawn["trace_id"], drawn["observation_id"], score))
                except ValueError as error:
                    result.problems.append(f"{path}: row {number}: {error}")
            elif any(cells):
                problem = f"item {row['item'][:40]!r} is not of this week. Restore its cell."
                result.problems.append(f"{path}: row {number}: {problem}")
    return result


def removals(store: Store, principals: Collection[str]) -> Iterator[Removal]:
    """The rows of these principals, in samples and sheets."""
    return _removals(store, lambda row: row["user_id"] in principals)


def drop_days(store: Store, days: Collection[str]) -> list[str]:
    """Retention: the rows of these days; `name: n lines` of each file."""
    return make(_removals(store, lambda row: row["day"] in days))


def unreadable(store: Store) -> list[str]:
    """Files of the weeks that are no sheet that can be read: it is unknown whom they name, so they are never edited."""
    lines: list[str] = []
    for folder in _weeks(store):
        for path in sorted(set(folder.iterdir()) - {folder / SAMPLE}):
            try:
                if path.name != SHEET:
                    raise ValueError("it is no sheet")
                _without(path, {row["item"] for row in _sample(folder)})
            except ValueError as error:
                lines.append(f"{path.relative_to(store.root)}: {error}")
    return lines


def render(rows: Iterable[Mapping[str, str]]) -> bytes:
    """The sheet. UTF-8 with a mark, without which Excel takes it for a code page."""
    return _csv([COLUMNS, *([shown(row.get(name, "")) for name in COLUMNS] for row in rows)], ",")


def shown(text: str) -> str:
    """A text as a cell: without control characters, cut in its middle, for a question stands at the end of its
    conversation; and no formula, wherever a reader that splits at semicolons or line ends begins a cell."""
    lines = (";".join(map(_disarmed, line.split(";"))) for line in text.splitlines())
    cell, half = "\n".join(lines), MAX_CELL // 2
    if len(cell) <= MAX_CELL:
        return cell
    return f"{cell[:half]}… ({len(cell) - 2 * half:,} characters are cut) …{cell[-half:]}"


def _disarmed(text: str) -> str:
    text = text.translate(_CONTROLS)
    return f"'{text}" if text.lstrip(" \"'").startswith(_FORMULA) else text


def _drawn(labels: RewardLabels, week: str, most: int) -> list[Row]:
    """The week's rows in the order of their items."""
    import pyarrow.dataset as ds  # it imports pandas

    table = ds.dataset(labels.dataset.uri, format="parquet")
    labelled = ds.field("final_reward").is_valid()
    ids = table.to_table(columns=["trace_id", "observation_id"], filter=labelled).to_pylist()
    salt = (week, labels.dataset.digest)
    drawn = set(nsmallest(most, (tuple(row.values()) for row in ids), key=lambda each: key_of("draw", *salt, *each)))
    traces = pa.array([trace for trace, _ in drawn], pa.string())
    rows = table.to_table(filter=labelled & ds.field("trace_id").isin(traces)).to_pylist()
    kept = [
        {"item": key_of("item", *salt, *each)[:12].translate(_LETTERS), "iteration": labels.iteration, **row}
        for row in rows
        if (each := (row["trace_id"], row["observation_id"])) in drawn
    ]
    return sorted(kept, key=lambda row: row["item"])


def _asked(row: Row) -> dict[str, str]:
    turns = (f"{turn['role']}: {turn['content']}" for turn in shown_turns(json.loads(row["prompt"])))
    cells = {"item": row["item"], "trace_id": row["trace_id"], "expected": row["reference"] or ""}
    return {**cells, "prompt": "\n\n".join(turns), "completion": shown_answer(row["completion"] or "")}


def _score(value: str) -> float | None:
    """A score in [0, 1], None for an empty cell. A decimal comma is one."""
    if not value:
        return None
    number = 0.0
    with suppress(ValueError):
        number = float(value.replace(",", "."))
    if not 1 <= number <= 5:
        raise ValueError(f"score is {value[:40]!r}. Write a number from 1 to 5, or leave it empty.")
    return (number - 1) / 4


def _removals(store: Store, goes: Callable[[Row], bool]) -> Iterator[Removal]:
    for folder in _weeks(store):
        items = {row["item"] for row in _sample(folder) if goes(row)}
        path = folder / SHEET
        if items and path.exists():
            with suppress(ValueError):  # `unreadable` says so
                content, lines = _without(path, items)
                if lines:
                    yield Removal(str(path.relative_to(store.root)), lines, partial(write_atomically, path, content))
        # The sample goes last: after a kill it still tells which rows the sheet has to lose.
        yield from of_lines(store, folder / SAMPLE, lambda line: goes(json.loads(line)))


def _without(path: Path, items: Collection[str]) -> tuple[bytes, int]:
    """The sheet without the rows of these items, and how many those are. Raises ValueError for what is no sheet."""
    rows, delimiter = _cells(path)
    at = rows[0].index("item")
    kept = [cells for cells in rows if not (len(cells) > at and cells[at].strip() in items)]
    content = _csv(kept, delimiter)
    if any(item.encode() in content for item in items):
        raise ValueError("rows ran together after a broken quote. Save it as CSV again.")
    return content, len(rows) - len(kept)


def _cells(path: Path) -> tuple[list[list[str]], str]:
    """The header and the rows, and what separates their cells. Raises ValueError for what is no sheet."""
    text = path.read_bytes().decode("utf-8-sig", "replace")
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error:
        rows = []
    if not rows or not {"item", "score", "reference"} <= set(rows[0]):
        raise ValueError("it is no sheet. Keep its first row, and save it as CSV (UTF-8) again.")
    return rows, delimiter


def _csv(rows: Iterable[Iterable[str]], delimiter: str) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL, delimiter=delimiter).writerows(rows)  # ends rows with CR LF
    return codecs.BOM_UTF8 + out.getvalue().encode("utf-8", "replace")


def _sample(folder: Path) -> list[Row]:
    return [json.loads(line) for line in (folder / SAMPLE).read_bytes().splitlines()]


def _weeks(store: Store) -> list[Path]:
    """The folders of all weeks, in order."""
    return sorted(path.parent for path in store.path(layout.REVIEWS).glob(f"[0-9]*/{SAMPLE}"))
