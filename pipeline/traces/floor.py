"""The floor under the admitted share of a source, below which the source or its kind is wrong; and the parts that
gave too little."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from pipeline.recipe.traces import Traces
from pipeline.traces.records import DayReport, FileReport, Reason, total

NO_EVIDENCE = frozenset(
    {
        *(Reason.ERASED, Reason.NOT_GENERATION, Reason.SUPERSEDED),
        *(Reason.INTERMEDIATE, Reason.HELPER, Reason.DUPLICATE),
    }
)
"""Rows that could not have been admitted, and speak against no source."""
UNREADABLE = frozenset({Reason.MALFORMED, Reason.TOO_LONG})
MOST_UNREADABLE = 0.1
"""Share of a part's rows that may be unreadable without a warning."""
ENOUGH = 20
"""Rows from which a share of a part means something."""


class RowCounts(NamedTuple):
    name: str
    seen: int
    admitted: int
    rejected: dict[Reason, int]

    @classmethod
    def of(cls, name: str, files: Collection[FileReport]) -> "RowCounts":
        rejected = total(file.rejected for file in files)
        return cls(name, sum(file.seen for file in files), sum(file.admitted for file in files), rejected)

    def count(self, reasons: Collection[Reason]) -> int:
        return sum(rows for reason, rows in self.rejected.items() if reason in reasons)

    @property
    def eligible(self) -> int:
        return self.seen - self.count(NO_EVIDENCE)

    def below(self, floor: float) -> bool:
        if not floor or self.seen == self.count({Reason.ERASED}):
            return False
        return not self.admitted or self.admitted < floor * self.eligible

    def reasons(self) -> str:
        most = sorted(self.rejected.items(), key=lambda item: -item[1])[:4]
        return ", ".join(f"{reason} {rows:,}" for reason, rows in most)

    def weakness(self, is_of_calls: bool, floor: float) -> str:
        """Why it gave too little, as a part; "" where it did not."""
        unreadable = self.count(UNREADABLE)
        if not self.rejected.keys().isdisjoint((Reason.TRUNCATED_FILE, Reason.TOO_LARGE)):
            why = f"it breaks off or is too large; {self.admitted:,} of {self.seen:,} rows were admitted before that"
        elif not is_of_calls or not floor:  # of scores and attributes only the unreadable rows are on record
            return ""
        elif self.seen >= ENOUGH and unreadable > MOST_UNREADABLE * self.seen:
            why = f"{unreadable:,} of {self.seen:,} rows cannot be read"
        elif self.eligible >= ENOUGH and self.admitted < floor * self.eligible:
            why = f"{self.admitted:,} of {self.eligible:,} rows were admitted"
        else:
            return ""
        return f"{self.name}: {why} ({self.reasons()})"

    def refusal(self, settings: Traces) -> str:
        """What was admitted and what was not, and what to do."""
        return (
            f"{self.name}: {self.admitted:,} of {self.eligible or self.seen:,} rows admitted, under the floor of "
            f"{100 * settings.min_admitted_share:g}%. Rejected: {self.reasons()}. Nothing was published. "
            f"Mend traces.source (its kind is {settings.reader}), the keys "
            f"and regions of traces, or lower traces.min_admitted_share (now {settings.min_admitted_share:g})."
        )


def whole(label: str, reports: Iterable[DayReport], calls: Collection[str]) -> RowCounts:
    return RowCounts.of(label, [file for report in reports for file in report.files if file.name in calls])


def weak_parts(reports: Iterable[DayReport], calls: Collection[str], floor: float) -> list[str]:
    """A line for each part that broke off, is largely unreadable or gave next to nothing."""
    files: dict[str, list[FileReport]] = {}
    for report in reports:
        for file in report.files:
            files.setdefault(file.name, []).append(file)
    lines = (RowCounts.of(name, files[name]).weakness(name in calls, floor) for name in sorted(files))
    return [line for line in lines if line]
