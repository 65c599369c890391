"""The floor under the admitted share of a source, below which the source or its kind is wrong, and an explanation from
its newest rows. Keys of metadata are named, values never."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from pipeline.recipe.traces import Traces
from pipeline.traces.pii import Unmaskable, mask
from pipeline.traces.records import DayReport, FileReport, Reason, total
from pipeline.traces.sources.protocol import Address

if TYPE_CHECKING:
    from pipeline.traces.sample import SourceSample

GONE = frozenset({Reason.ERASED, Reason.LATE})
STOOD_FOR = frozenset({Reason.SUPERSEDED, Reason.INTERMEDIATE, Reason.HELPER, Reason.DUPLICATE})
NO_EVIDENCE = GONE | STOOD_FOR | {Reason.NOT_GENERATION}
"""Rows that could not have been admitted, and speak against no source."""
UNREADABLE = frozenset({Reason.MALFORMED, Reason.TOO_LONG, Reason.TRUNCATED_FILE, Reason.TOO_LARGE})
MOST_UNREADABLE = 0.1
"""Share of a part's rows that may be unreadable without a warning."""
ENOUGH = 20
"""Rows from which a share of a part means something: a trace downloaded by itself is one or two."""
KEYS, REASONS, LONGEST_KEY = 20, 4, 40
"""Keys and reasons that are shown, characters of a key."""


class RowCounts(NamedTuple):
    name: str
    seen: int
    admitted: int
    rejected: dict[Reason, int]

    @property
    def eligible(self) -> int:
        return self.seen - self._of(NO_EVIDENCE)

    @property
    def unreadable(self) -> int:
        return self._of(UNREADABLE)

    def below(self, floor: float) -> bool:
        if not floor or self.seen == self._of(GONE):
            return False
        return not self.admitted or self.admitted < floor * self.eligible

    def reasons(self, shown: int = 3) -> str:
        most = sorted(self.rejected.items(), key=lambda item: -item[1])[:shown]
        return ", ".join(f"{reason} {rows:,}" for reason, rows in most)

    def _of(self, reasons: Collection[Reason]) -> int:
        return sum(rows for reason, rows in self.rejected.items() if reason in reasons)


def whole(label: str, reports: Iterable[DayReport], calls: Collection[str]) -> RowCounts:
    return _sum(label, [file for report in reports for file in report.files if file.name in calls])


def weak_parts(reports: Iterable[DayReport], calls: Collection[str], floor: float) -> list[str]:
    """A line for each part that broke off, is largely unreadable or gave next to nothing."""
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
        return f"it inflates to too much, and is read no further ({part.reasons()})"
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


def explain(tally: RowCounts, address: Address, settings: Traces, now: datetime) -> str:
    """What was admitted and what was not, the likely cause, and what to do."""
    from pipeline.traces.sample import sample_source  # which imports the stage, and that this module

    sample: SourceSample | None = None
    with suppress(Exception):  # the boundary of a source that is wrong already, whatever it holds
        sample = sample_source(address, settings, now)
    details = sample.details if sample else {}
    most = sorted(tally.rejected.items(), key=lambda item: -item[1])
    blamed = next((reason for reason, _ in most if reason not in NO_EVIDENCE), None)
    reasons = [f"{r} {n:,}" + (f" ({details[r]})" if details.get(r) else "") for r, n in most[:REASONS]]
    floor = f"traces.min_admitted_share (now {settings.min_admitted_share:g})"
    advice = f"Mend traces.source (its kind is {settings.reader}) or the gates, or lower {floor} if all is right."
    if blamed is Reason.CONSENT and sample:  # then the rows could be read
        advice = _about_consent(sample, settings.consent_key)
    elif blamed is Reason.REGION:
        advice = f"Name the regions whose traces may be read in traces.regions_allowed (now {list(settings.regions)})."
    share = f"{tally.admitted:,} of {tally.eligible or tally.seen:,} rows admitted"
    under = f"under the floor of {100 * settings.min_admitted_share:g}%"
    return f"{tally.name}: {share}, {under}. Rejected: {'; '.join(reasons)}. Nothing was published. {advice}"


def _about_consent(sample: SourceSample, key: str) -> str:
    keys, rows = sample.metadata_keys, sum(sample.models.values())
    shown = ", ".join(f"{_shown(name)} ({count:,})" for name, count in list(keys.items())[:KEYS]) or "none"
    if key in keys:
        return (
            f"Of {rows:,} rows looked at {keys[key]:,} have the metadata key {key!r}, and next to none says "
            f"yes. Ask for consent, or set traces.consent_key to another key; keys seen: {shown}."
        )
    return (
        f"Of {rows:,} rows looked at no row has the metadata key {key!r}; keys seen: {shown}. "
        "Set traces.consent_key to the one that says whether a user agreed to training."
    )


def _shown(key: str) -> str:
    """A key as it may be printed: people have put names and addresses into keys."""
    try:
        return mask(key) if len(key) <= LONGEST_KEY else f"{mask(key[:LONGEST_KEY])}..."
    except Unmaskable:
        return "[BINARY]"
