"""The floor under the admitted share: a source of which next to nothing is admitted is a wrong one, or one read wrong.

The share is of the rows that could have been admitted. Spans, tool events (`not_generation`), rows that another one
stands for (`superseded`, `intermediate`, `helper`, `duplicate`), those of forgotten users and late
ones are no evidence against a source, and neither are files of scores or attributes. But a source with rows of which
none is admitted is always below the floor, unless it was emptied by forgetting or retention. Owns what counts as too
little, of the whole and of a part. Refuses to look into a source: `wrong_source` says what is the matter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from pipeline.traces.records import DayReport, FileReport, Reason, total

GONE = frozenset({Reason.ERASED, Reason.LATE})
STOOD_FOR = frozenset({Reason.SUPERSEDED, Reason.INTERMEDIATE, Reason.HELPER, Reason.DUPLICATE})
NO_EVIDENCE = GONE | STOOD_FOR | {Reason.NOT_GENERATION}
UNREADABLE = frozenset({Reason.MALFORMED, Reason.TOO_LONG, Reason.TRUNCATED_FILE, Reason.TOO_LARGE})
MOST_UNREADABLE = 0.1
"""Share of a part's rows that may be unreadable without a warning."""
ENOUGH = 20
"""Rows from which a share of a part means something: a trace downloaded by itself is one or two."""


class RowCounts(NamedTuple):
    """What became of some rows. `name`: of the part, or of the source."""

    name: str
    seen: int
    admitted: int
    rejected: dict[Reason, int]

    @property
    def eligible(self) -> int:
        """Rows that could have been admitted."""
        return self.seen - self._of(NO_EVIDENCE)

    @property
    def unreadable(self) -> int:
        return self._of(UNREADABLE)

    def below(self, floor: float) -> bool:
        """Whether too little of the whole source was admitted. A floor of 0 is none."""
        if not floor or self.seen == self._of(GONE):
            return False
        return not self.admitted or self.admitted < floor * self.eligible

    def reasons(self, shown: int = 3) -> str:
        """The reasons of most rows, with their counts."""
        most = sorted(self.rejected.items(), key=lambda item: -item[1])[:shown]
        return ", ".join(f"{reason} {rows:,}" for reason, rows in most)

    def _of(self, reasons: Collection[Reason]) -> int:
        return sum(rows for reason, rows in self.rejected.items() if reason in reasons)


def whole(label: str, reports: Iterable[DayReport], calls: Collection[str]) -> RowCounts:
    """All rows of the parts `calls`, by name."""
    return _sum(label, [file for report in reports for file in report.files if file.name in calls])


def weak_parts(reports: Iterable[DayReport], calls: Collection[str], floor: float) -> list[str]:
    """A line for each part that broke off, is unreadable in good part or gave next to nothing, saying which."""
    files: dict[str, list[FileReport]] = {}
    for report in reports:
        for file in report.files:
            files.setdefault(file.name, []).append(file)
    tallies = [_sum(name, of) for name, of in sorted(files.items())]
    return [f"{tally.name}: {why}" for tally in tallies if (why := _weakness(tally, tally.name in calls, floor))]


def _weakness(part: RowCounts, calls: bool, floor: float) -> str:
    if Reason.TRUNCATED_FILE in part.rejected:
        return f"it breaks off; {part.admitted:,} of {part.seen:,} rows were admitted before that ({part.reasons()})"
    if Reason.TOO_LARGE in part.rejected:
        return f"it inflates beyond traces.max_part_bytes or max_part_ratio, and is read no further ({part.reasons()})"
    if not calls or not floor:  # of scores and attributes only the unreadable rows are on record
        return ""
    if part.unreadable and part.unreadable == part.seen:
        return f"none of its {part.seen:,} rows can be read ({part.reasons()})"
    if part.seen >= ENOUGH and part.unreadable > MOST_UNREADABLE * part.seen:
        return f"{part.unreadable:,} of {part.seen:,} rows cannot be read ({part.reasons()})"
    if part.eligible >= ENOUGH and part.admitted < floor * part.eligible:
        return f"{part.admitted:,} of {part.eligible:,} rows were admitted ({part.reasons()})"
    return ""


def _sum(name: str, files: Collection[FileReport]) -> RowCounts:
    return RowCounts(name, sum(f.seen for f in files), sum(f.admitted for f in files), total(f.rejected for f in files))
