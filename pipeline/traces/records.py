"""Records of the traces stage: reasons, the report of each file and day, the dataset of an iteration. The equation
`seen == admitted + sum(rejected)` is checked wherever a file's report is made or read."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from enum import StrEnum
from typing import Self

from pydantic import NonNegativeInt, model_validator

from pipeline.core.iteration import Iteration
from pipeline.core.locations import Uri
from pipeline.core.storage import Record, digest_json

UNKNOWN_DAY = "unknown"
"""The day of a row that cannot be dated, neither by itself nor by the name of its file."""


class Reason(StrEnum):
    """Why a row of the source is not in the governed table. A row has exactly one."""

    MALFORMED = "malformed"  # not JSON, not UTF-8, or nested beyond reading
    TOO_LONG = "too_long"  # a line over the limit: skipped unread
    TRUNCATED_FILE = "truncated_file"  # the file breaks off or vanished: one count for its unread rest
    TOO_LARGE = "too_large"  # the file inflates beyond the recipe's limits: one count for its unread rest
    SCHEMA = "schema"  # JSON without what a trace needs
    FUTURE = "future"  # dated more than a day after it was read
    NOT_GENERATION = "not_generation"  # a span, tool call or event: it holds no text of the model
    NO_PREFERENCE = "no_preference"  # an imported row that is a tie, or does not say how good an answer is
    NO_CONTENT = "no_content"  # a model call whose text was not recorded, or is a placeholder
    UNREADABLE = "unreadable"  # its text is in a shape that no reader knows
    SUPERSEDED = "superseded"  # a newer export of the same observation won
    INTERMEDIATE = "intermediate"  # an earlier model call for the same message of a user, of which the last one stands
    HELPER = "helper"  # a model call that by its name is no answer to a user: a title, tags, a guard
    ERASED = "erased"  # its user was forgotten
    PII = "pii"  # personal data that cannot be masked
    CONSENT = "consent"
    REGION = "region"
    CONFIDENTIAL = "confidential"
    ERROR = "error"
    TRUNCATED = "truncated"  # the completion did not end by the model itself
    LATENCY = "latency"
    TOOL_CALL_ONLY = "tool_call_only"  # only calls that the provider executes itself, and no text
    EMPTY_OUTPUT = "empty_output"
    DUPLICATE = "duplicate"
    GATE_ERROR = "gate_error"  # a gate raised: the row fails closed


class FileReport(Record):
    """What one source file gave to one day. A file of scores has rows here only when they were unreadable."""

    name: str
    sha256: str
    bytes: NonNegativeInt
    """As stored, compressed or not."""
    seen: NonNegativeInt
    """Rows that were staged, as counted before they were compared."""
    admitted: NonNegativeInt
    rejected: dict[Reason, int]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        """Every row that was seen ended in exactly one place."""
        if self.seen != self.admitted + sum(self.rejected.values()):
            raise ValueError(
                f"{self.name}: {self.seen} rows seen, {self.admitted} admitted and {sum(self.rejected.values())} "
                "rejected do not add up; materialise the day again."
            )
        return self


class DayReport(Record):
    """Where every row of a day went. A day whose files hold nothing has seen 0."""

    day: str
    rules: str
    """Digest of the gates' version and settings."""
    digest: str
    """`day_digest`."""
    files: tuple[FileReport, ...]
    erased: tuple[str, ...] = ()
    """Proofs (`pipeline.traces.erased.ErasedUser`) of the forgotten users who had rows in this day."""

    @property
    def seen(self) -> int:
        return sum(file.seen for file in self.files)

    @property
    def admitted(self) -> int:
        return sum(file.admitted for file in self.files)

    @property
    def rejected(self) -> dict[Reason, int]:
        return total(file.rejected for file in self.files)

    def is_in(self, digests: Mapping[str, str]) -> bool:
        """Whether a table with these digests of days has the day so. Rows of no known day are never in the table."""
        return self.day == UNKNOWN_DAY or digests.get(self.day) == self.digest


def day_digest(rules: str, files: Mapping[str, str], erased: Iterable[str]) -> str:
    """Digest of what a day is made from: the same inputs give the same rows. `files`: name to sha256."""
    return digest_json([rules, sorted(files.items()), sorted(erased)])


class Scope(Record):
    """Which rows of days count, beside those of imports, which always do; without a field all of them do."""

    models: tuple[str, ...] = ()
    """Only rows of these models."""
    after: datetime | None = None
    """Only newer rows."""
    without: tuple[str, ...] = ()
    """No rows of these models, whose rollout is not over or was taken back."""
    since: date | None = None
    """No rows of earlier days."""


class Window(Record):
    """The days of one dataset, and the reference under which they are read."""

    days: tuple[str, ...]
    uri: Uri
    rows: int
    digest: str
    snapshot: str
    scope: Scope = Scope()
    """Which rows of the days are the dataset's."""


class GovernedTraces(Record):
    """The stage's output: the iteration that the governed data starts, and the account of every row."""

    iteration: Iteration
    source: Uri
    days: tuple[DayReport, ...]
    """The window's days, other days of the source that ended without a trace, and rows of no known day; with an empty
    window the newest days, whose traces are all of other models than the champion."""

    @property
    def seen(self) -> int:
        return sum(day.seen for day in self.days)

    @property
    def admitted(self) -> int:
        return sum(day.admitted for day in self.days)

    @property
    def rejected(self) -> dict[Reason, int]:
        return total(day.rejected for day in self.days)


def total(reasons: Iterable[Mapping[Reason, int]]) -> dict[Reason, int]:
    counted = sum((Counter(r) for r in reasons), Counter[Reason]())
    return {reason: counted[reason] for reason in Reason if counted[reason]}
