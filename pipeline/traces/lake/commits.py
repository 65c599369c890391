"""One table that several processes write at once: a commit swaps data files and the digests of the days they are of.

Owns who wins, which files a day has, and what a manifest says of a file. Refuses to know why files are swapped.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pipeline.traces.lake.catalogue import LakeConfig
from pipeline.traces.lake.files import read_files
from pipeline.traces.lake_names import located, named

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

DIGEST = "traces.digest."
"""Table property per day: the digest of what the day was made from, set in the commit that replaced it."""
COMMIT = "traces.commit"
"""Snapshot property: the id of our commit, by which one whose answer was lost is known again."""
ATTEMPTS = 40
SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.05, 5.0
EPOCH = date(1970, 1, 1)
T = TypeVar("T")


class DayReplaced(ValueError):
    """Another run replaced a day between this one's reading of the table and its commit."""


class TableChange(NamedTuple):
    """Data files that leave the table, and those that come in their place."""

    removed: Sequence[DataFile]
    added: Sequence[DataFile]


class SharedTable:
    """The table, and the days' digests as they were when it was opened: a commit stands on those."""

    def __init__(self, table: Table, config: LakeConfig) -> None:
        self.table = table
        self._config = config
        self._seen = self.digests()

    def digests(self) -> dict[str, str]:
        return {k.removeprefix(DIGEST): v for k, v in self.table.properties.items() if k.startswith(DIGEST)}

    @property
    def snapshot(self) -> str:
        current = self.table.current_snapshot()
        return str(current.snapshot_id) if current else ""

    def has(self, snapshot: str) -> bool:
        return not snapshot or self.table.snapshot_by_id(int(snapshot)) is not None

    def commit(
        self, change: Callable[[], TableChange], digests: Mapping[str, str | None], summary: dict[str, str]
    ) -> None:
        """Swap the files of `change()` and set the days' digests, unless one of the days is not as it was seen.

        `change` is planned again on the newer state after a commit of others. A commit whose fate is unknown is looked
        for by its id before another attempt.
        """
        before = {day: self._seen.get(day) for day in digests}
        commit = uuid.uuid4().hex

        def attempt() -> None:
            snapshots = self.table.snapshots()
            if any(s.summary is not None and s.summary.additional_properties.get(COMMIT) == commit for s in snapshots):
                return
            properties = self.digests()
            now = {day: properties.get(day) for day in digests}
            if now != before:
                if now == digests:
                    return
                days = ", ".join(sorted(day for day in digests if now[day] != before[day]))
                raise DayReplaced(f"Another run replaced {days} in the governed table meanwhile; run again.")
            self._swap(change(), digests, {**summary, COMMIT: commit})

        self.attempts(attempt)
        self._seen.update({day: digest for day, digest in digests.items() if digest is not None})
        for day in digests:
            if digests[day] is None:
                self._seen.pop(day, None)

    def _swap(self, change: TableChange, digests: Mapping[str, str | None], summary: dict[str, str]) -> None:
        with self.table.transaction() as transaction:
            with transaction.update_snapshot(snapshot_properties=summary).overwrite() as swap:
                for file in change.removed:
                    swap.delete_data_file(file)
                for file in change.added:
                    swap.append_data_file(file)
            if properties := {DIGEST + day: digest for day, digest in digests.items() if digest is not None}:
                transaction.set_properties(properties)
            known = self.digests()
            if dropped := [DIGEST + day for day, digest in digests.items() if digest is None and day in known]:
                transaction.remove_properties(*dropped)

    def attempts(self, attempt: Callable[[], T]) -> T:
        """Try on the newest state of the table until no other process is faster."""
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ValidationException
        from sqlalchemy.exc import OperationalError

        # PyIceberg 0.12 looks for the files that leave in threads that share one evaluator: now and then it overlooks a
        # manifest, and says before it commits that files are missing which are there.
        passing = (CommitFailedException, CommitStateUnknownException, OperationalError, ValidationException)

        wait_s = 0.0
        for _ in range(ATTEMPTS):
            try:
                if wait_s:
                    time.sleep(random.uniform(wait_s / 2, wait_s))
                    self.table.refresh()
                return attempt()
            except passing:
                wait_s = min(max(2 * wait_s, SHORTEST_WAIT_S), LONGEST_WAIT_S)
        raise TimeoutError(f"The catalogue took none of {ATTEMPTS} commits: others are faster, or it fails. Run again.")

    def files(self, days: Iterable[str] | None = None, snapshot: str | None = None) -> list[DataFile]:
        """The data files of `days` (None: all) at a snapshot (None: the current one), in the order of days."""
        from pyiceberg.expressions import AlwaysTrue

        wanted = set(days) if days is not None else None
        if snapshot is None:
            snapshot = self.snapshot
        if not snapshot or wanted == set():
            return []
        if not self.has(snapshot):
            self.table.refresh()  # made after this lake was opened
        if not self.has(snapshot):
            raise ValueError(f"The governed table's snapshot {snapshot} has expired; materialise the traces again.")
        within = AlwaysTrue() if wanted is None else f"day >= '{min(wanted)}' and day <= '{max(wanted)}'"
        tasks = list(self.table.scan(within, snapshot_id=int(snapshot)).plan_files())
        if any(task.delete_files for task in tasks):
            raise ValueError("Another engine left row-level deletes in the governed table; rewrite its files there.")
        files = [task.file for task in tasks if wanted is None or day_of(task.file) in wanted]
        return sorted(files, key=lambda file: (day_of(file), file.file_path))

    def uri(self, file: DataFile) -> str:
        """Where a data file lies; its `file_path` is only what the metadata calls it."""
        return located(file.file_path, self._config.location) if self._config.movable else file.file_path

    def data_file(self, uri: str) -> DataFile:
        """What the manifest will say of a file, from its footer."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        name = named(uri, self._config.location, self.table.location()) if self._config.movable else uri
        file = parquet_file_to_data_file(self.table.io, self.table.metadata, name)
        if file.partition[1] is None:  # Parquet keeps no bounds of a value over 4 KB
            file.partition[1] = next(read_files(self._config, [uri], ["model"]))["model"][0].as_py()
        return file


def day_of(file: DataFile) -> str:
    """YYYY-MM-DD."""
    return str(EPOCH + timedelta(days=file.partition[0]))
