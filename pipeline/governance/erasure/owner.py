"""Who is to be forgotten. The owner of a row is who matches exactly: in NFC, and with its case."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core.mark_keys import MarkKey
from pipeline.rewards.feedback import principal
from pipeline.traces.erased import user_hash
from pipeline.traces.pii import pseudonym
from pipeline.traces.rows import SCHEMA


class Person(NamedTuple):
    """`ids`: as the governed table and raw records may write the user. `since`: only rows from then on go."""

    ids: frozenset[str]
    user_hash: str
    since: datetime | None
    mark: str = ""
    """As a store's key makes it."""

    @classmethod
    def named(cls, user_id: str, since: datetime | None = None) -> Person:
        """By the source's id or the table's pseudonym of it. `since`: UTC unless it says otherwise.

        Raises ValueError for an id that is empty or no Unicode.
        """
        if not user_id.strip():
            raise ValueError("The user id is empty. Give the id under which the source has the user's traces.")
        try:
            user_id.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"The user id {user_id!r} is not Unicode. Give it in UTF-8.") from error
        since = since.replace(tzinfo=UTC) if since is not None and since.tzinfo is None else since
        same = {user_id, *(unicodedata.normalize(form, user_id) for form in ("NFC", "NFD"))}
        return cls(frozenset({*same, *(str(pseudonym(each)) for each in same)}), user_hash(user_id), since)

    def marked(self, key: MarkKey) -> Person:
        """The same, with the mark of a store that has this key."""
        return self._replace(mark=key.mark(self.user_hash))

    @property
    def principals(self) -> frozenset[str]:
        """As labels, reviews, samples and suites write the user."""
        return frozenset(principal(each, None, "") for each in self.ids)

    def owns(self, user_id: str | None) -> bool:
        """Whether a record that names this owner is theirs."""
        if not user_id:
            return False
        return unicodedata.normalize("NFC", user_id) in self.ids or pseudonym(user_id) in self.ids

    def counts(self, moment: datetime) -> bool:
        """Whether a record of theirs of this time goes."""
        return self.since is None or moment >= self.since

    def rows(self) -> pc.Expression:
        """Whether a row of the governed table is theirs, and to be forgotten."""
        theirs = pc.field("user_id").isin(pa.array(sorted(self.ids), pa.string()))
        if self.since is None:
            return theirs
        return theirs & (pc.field("timestamp") >= pa.scalar(self.since, SCHEMA.field("timestamp").type))
