"""The answers that people write on the review sheets, and whether two of them write the same.

Owns which references are equal (equal numbers, else equal texts after normalisation) and Krippendorff's alpha of them,
nominal: 1 - observed / expected disagreement, over the rows that two people or more have answered (Krippendorff,
"Content Analysis", 2004, chapter 11). Every sheet is a reviewer. Refuses to choose between people who disagree: such a
row has no reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.rewards.reviews import sample_of, sheet, sheets_of, weeks
from pipeline.rewards.verifiers import plain_number, reference_answer
from pipeline.rewards.verifiers.texts import normalise
from pipeline.storage import Store

MIN_AGREEMENT = 0.6
"""Alpha below which references are not what people agree on."""
MIN_TWICE = 0.1
"""Share of the rows with a reference that two people have to have answered."""


class AnsweredRow(NamedTuple):
    """A row of a week's sample (columns of LABELS), and what each of its reviewers wrote."""

    row: dict[str, Any]
    references: tuple[str, ...]

    @property
    def reference(self) -> str:
        """What they agree on; "" where they do not."""
        return self.references[0] if len({meaning(text) for text in self.references}) == 1 else ""


def answered(store: Store) -> list[AnsweredRow]:
    """Every row for which somebody wrote a reference, of all weeks. Sheets that cannot be read are left out: `survey`
    says which."""
    return [row for folder in weeks(store) for row in _answered_of(folder)]


def agreement(rows: Sequence[AnsweredRow]) -> float | None:
    """Krippendorff's alpha, at most 1; None where fewer than two rows have two references, or all are the same."""
    units = [[meaning(text) for text in each.references] for each in rows if len(each.references) > 1]
    values = Counter(value for unit in units for value in unit)
    total = values.total()
    expected = sum(count * (total - count) for count in values.values())
    if len(units) < 2 or not expected:
        return None
    counted = ((len(unit), count) for unit in units for count in Counter(unit).values())
    observed = sum(count * (size - count) / (size - 1) for size, count in counted)
    return 1 - (total - 1) * observed / expected


def doubts(rows: Sequence[AnsweredRow]) -> str:
    """Why nothing may be decided by these references; "" where it may."""
    twice = sum(len(each.references) > 1 for each in rows)
    if twice < MIN_TWICE * len(rows):
        return (
            f"two people answered {twice} of {len(rows)} rows, and {MIN_TWICE:.0%} are needed: let a second one fill "
            "in human_reference, on a sheet of their own"
        )
    alpha = agreement(rows)
    if alpha is None:
        return "the rows that two people answered are too few, or all the same: let them answer more"
    if alpha < MIN_AGREEMENT:
        return (
            f"people do not agree on the references (Krippendorff's alpha {alpha:.2f}, at least {MIN_AGREEMENT}): "
            "settle how to answer, and review again"
        )
    return ""


def meaning(text: str) -> str:
    """What two references have in common when they say the same."""
    answer = reference_answer(text)
    number = plain_number(answer)
    return normalise(answer) if number is None else str(number)


def _answered_of(folder: Path) -> Iterator[AnsweredRow]:
    sample = [row for row in sample_of(folder) if row]
    by_key = {row["trace_id"]: row for row in sample} | {row["item"]: row for row in sample}
    written: dict[str, list[str]] = {}
    for path in sheets_of(folder):
        own: dict[str, str] = {}
        for each in _read(path):
            row = by_key.get(each.item) or by_key.get(each.trace_id.removeprefix("'"))
            if row is not None:
                own[row["item"]] = each.reference
        for item, reference in own.items():
            written.setdefault(item, []).append(reference)
    for row in sample:
        if row["item"] in written:
            yield AnsweredRow(row, tuple(written[row["item"]]))


def _read(path: Path) -> Iterator[sheet.WrittenReference]:
    try:
        yield from sheet.references(path.read_bytes(), path.suffix == ".jsonl")
    except (ValueError, OSError):
        return
