"""The weekly review: a random sample of labels that a person scores and answers, in one CSV file.
`rewards/reviews/<week>/`: `sample.jsonl` has the rows as drawn; of `sheet.csv` item, score and reference are read."""

import codecs
import csv
import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from heapq import nsmallest
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.core import layout
from pipeline.core.conversation import shown_answer
from pipeline.core.removal import Removal, make, of_lines
from pipeline.core.storage import DatasetRef, Store, write_atomically
from pipeline.recipe.rewards import DEFAULT_RUBRIC
from pipeline.rewards.examples import chat
from pipeline.rewards.findings import key_of
from pipeline.rewards.records import RewardLabels

SAMPLE, SHEET, RUBRIC = "sample.jsonl", "sheet.csv", "rubric.txt"
COLUMNS = ("item", "trace_id", "prompt", "completion", "expected", "score", "reference")
"""`item` is a key of letters alone: spreadsheets turn ids like 12e4 or 0042 into numbers."""
MAX_CELL = 30_000
"""Excel's limit is 32,767 characters a cell; the whole text is in the sample."""
HOW = """\
Fill in sheet.csv and save it as CSV (UTF-8) under the same name. score: from 1 to 5; 4.5 is a score too. reference: the
answer that you would give, the answer alone, where you know it; a golden suite is made of these. Leave a cell empty
where you cannot tell. `expected` is the reference that the trace came with. An apostrophe before = + - or @ keeps
spreadsheets from taking a text for a formula. Long texts are cut; they are whole in sample.jsonl.

"""
Row = dict[str, Any]

# A character that begins a formula (full-width ones do in East Asian versions), and the run before it.
_FORMULA = re.compile("(?<![\\s;\"'])([\\s;\"']*)([=+\\-@\uff1d\uff0b\uff0d\uff20])")
_ENDS_A_CELL = re.compile(r"[\n;]")
# Control characters cut cells off or are refused; their pictures are harmless. Line feeds remain, tabs become spaces.
_CONTROLS = {code: chr(0x2400 + code) for code in range(32)} | {0x7F: chr(0x2421), 0x09: "    ", 0x0A: "\n"}
_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")


class ReviewedLabel(NamedTuple):
    """One label of a weekly sample that a person has scored, in [0, 1]."""

    week: str
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
    asked: dict[str, int]
    """Rows of each week's sample."""


def week_of(moment: datetime) -> str:
    """The ISO week in UTC, as in 2026-W47."""
    year, week, _ = (moment.astimezone(UTC) if moment.tzinfo else moment).isocalendar()
    return f"{year}-W{week:02d}"


def write(store: Store, labels: RewardLabels, week: str, most: int, rubric: str = DEFAULT_RUBRIC) -> Path | None:
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
            (staging / SHEET).write_bytes(render(_asked(row) for row in rows))
            (staging / RUBRIC).write_text(f"{HOW}{rubric}\n", encoding="utf-8")
    return store.path(folder, SHEET)


def survey(store: Store) -> Survey:
    """Every week's sheet, read against its sample."""
    result = Survey([], [], [], {})
    for folder in weeks(store):
        sample = {row["item"]: row for row in _sample(folder)}
        result.asked[folder.name] = len(sample)
        path = folder / SHEET
        try:
            rows = _filled(path)
        except (ValueError, OSError) as error:
            result.problems.append(f"{path}: {error}")
            continue
        for number, row in enumerate(rows, 2):
            drawn = sample.get(row["item"].strip())
            if drawn is None:
                item = row["item"][:40]
                result.problems.append(f"{path}: row {number}: item {item!r} is not of this week. Restore its cell.")
                continue
            if reference := row["reference"].strip().removeprefix("'").strip():
                result.answered.append({**drawn, "reference": reference})
            try:
                score = _score(row["score"])
            except ValueError as error:
                result.problems.append(f"{path}: row {number}: {error}")
                continue
            if score is not None:
                result.reviewed.append(ReviewedLabel(folder.name, drawn["trace_id"], drawn["observation_id"], score))
    return result


def labels_of(labels: DatasetRef, reviewed: Sequence[ReviewedLabel]) -> pa.Table:
    """The rows of a label table that `summary.human_agreement` needs for these reviews."""
    import pyarrow.dataset as ds  # it imports pandas

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
    """What lies beside samples and is no sheet that can be read: it is unknown whom it names, so it is never edited."""
    lines: list[str] = []
    for folder in weeks(store):
        for path in sorted(set(folder.iterdir()) - {folder / SAMPLE, folder / RUBRIC}):
            try:
                if path.name != SHEET:
                    raise ValueError("it is no sheet")
                _without(path, {row["item"] for row in _sample(folder)})
            except ValueError as error:
                lines.append(f"{path.relative_to(store.root)}: {error}")
    return lines


def weeks(store: Store) -> list[Path]:
    """The folders of all weeks, in order."""
    return sorted(path.parent for path in store.path(layout.REVIEWS).glob(f"[0-9]*/{SAMPLE}"))


def render(rows: Iterable[Mapping[str, str]]) -> bytes:
    """The sheet. UTF-8 with a mark, without which Excel takes it for a code page."""
    return _csv([COLUMNS, *([shown(row.get(name, "")) for name in COLUMNS] for row in rows)], ",")


def shown(text: str) -> str:
    """A text as a cell: cut in its middle, for a question stands at the end of its conversation; without control
    characters, and no formula. What was put in is an apostrophe."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)
    cell = _FORMULA.sub(_disarmed, lines)
    if len(cell) <= MAX_CELL:
        return cell
    half = MAX_CELL // 2
    return f"{cell[:half]}… ({len(cell) - 2 * half:,} characters are cut) …{cell[-half:]}"


def _disarmed(match: re.Match[str]) -> str:
    """Wherever a cell could begin for a reader that splits at semicolons or line ends, where quotes don't hold."""
    run, sign = match.groups()
    return f"{run}'{sign}" if match.start() == 0 or _ENDS_A_CELL.search(run) else match[0]


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
    cells = {"item": row["item"], "trace_id": row["trace_id"], "expected": row["reference"] or ""}
    return {**cells, "prompt": chat(row["prompt"]), "completion": shown_answer(row["completion"] or "")}


def _score(value: str) -> float | None:
    """A score in [0, 1], None for an empty cell. A decimal comma is one."""
    text = value.strip().lstrip("'")
    if not text:
        return None
    try:
        number = float(text.replace(",", "."))
    except ValueError:
        number = 0.0
    if not 1 <= number <= 5:
        raise ValueError(f"score is {text[:40]!r}. Write a number from 1 to 5, or leave it empty.")
    return (number - 1) / 4


def _removals(store: Store, goes: Callable[[Row], bool]) -> Iterator[Removal]:
    for folder in weeks(store):
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


def _filled(path: Path) -> list[dict[str, str]]:
    """The rows by the names of the header; a missing cell is empty."""
    (names, *rows), _ = _cells(path)
    return [{**dict.fromkeys(COLUMNS, ""), **dict(zip(names, cells, strict=False))} for cells in rows if any(cells)]


def _cells(path: Path) -> tuple[list[list[str]], str]:
    """The header and the rows, and what separates their cells. Raises ValueError for what is no sheet."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"it cannot be read ({error}). Save it as CSV (UTF-8) again.") from error
    if not rows or not {"item", "score", "reference"} <= set(rows[0]):
        raise ValueError(f"its first row has not the names {', '.join(COLUMNS)}. Keep the first row of sheet.csv.")
    return rows, delimiter


def _csv(rows: Iterable[Sequence[str]], delimiter: str) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL, delimiter=delimiter).writerows(rows)  # ends rows with CR LF
    return codecs.BOM_UTF8 + out.getvalue().encode("utf-8", "replace")


def _sample(folder: Path) -> list[Row]:
    return [json.loads(line) for line in (folder / SAMPLE).read_bytes().splitlines()]
