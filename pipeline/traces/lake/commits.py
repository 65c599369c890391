"""Commits to a table that several processes write at once: each swaps data files and sets the digests of their days."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pipeline.traces.lake.files import read_files
from pipeline.traces.lake_config import LakeConfig, located, named

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
    removed: Sequence[DataFile]
    added: Sequence[DataFile]


class SharedTable:
    """The table, and the days' digests as they were when it was opened: a commit expects those."""

    def __init__(self, table: Table, config: LakeConfig) -> None:
        self._table = table
        self._config = config
        self._seen = self.digests()

    def digests(self) -> dict[str, str]:
        return {k.removeprefix(DIGEST): v for k, v in self._table.properties.items() if k.startswith(DIGEST)}

    @property
    def snapshot(self) -> str:
        """Id of the current snapshot; empty before the first commit."""
        current = self._table.current_snapshot()
        return str(current.snapshot_id) if current else ""

    def has(self, snapshot: str) -> bool:
        return not snapshot or self._table.snapshot_by_id(int(snapshot)) is not None

    def commit(
        self, change: Callable[[], TableChange], digests: Mapping[str, str | None], summary: dict[str, str]
    ) -> None:
        """Swap the files of `change()` and set the days' digests; DayReplaced where one of the days changed meanwhile.

        After a commit of another process `change` is called again. Where the answer to a commit was lost, the next
        attempt looks for its id first.
        """
        before = {day: self._seen.get(day) for day in digests}
        commit = uuid.uuid4().hex

        def attempt() -> None:
            snapshots = self._table.snapshots()
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
        self._seen = {day: digest for day, digest in {**self._seen, **digests}.items() if digest is not None}

    def _swap(self, change: TableChange, digests: Mapping[str, str | None], summary: dict[str, str]) -> None:
        with self._table.transaction() as transaction:
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

        # ValidationException: PyIceberg 0.12 looks for removed files in threads that share one evaluator, and sometimes
        # overlooks a manifest: it then reports files as missing before it commits.
        passing = (CommitFailedException, CommitStateUnknownException, OperationalError, ValidationException)

        wait_s = 0.0
        for _ in range(ATTEMPTS):
            try:
                if wait_s:
                    time.sleep(random.uniform(wait_s / 2, wait_s))
                    self._table.refresh()
                return attempt()
            except passing:
                wait_s = min(max(2 * wait_s, SHORTEST_WAIT_S), LONGEST_WAIT_S)
        raise TimeoutError(f"The catalogue took none of {ATTEMPTS} commits: others are faster, or it fails. Run again.")

    def data_files(self, days: Iterable[str] | None = None, snapshot: str | None = None) -> list[DataFile]:
        """The data files of `days` (None: all) at a snapshot (None: the current one), in the order of days."""
        from pyiceberg.expressions import AlwaysTrue

        wanted = set(days) if days is not None else None
        if snapshot is None:
            snapshot = self.snapshot
        if not snapshot or wanted == set():
            return []
        if not self.has(snapshot):
            self._table.refresh()  # made after this lake was opened
        if not self.has(snapshot):
            raise ValueError(f"The governed table's snapshot {snapshot} has expired; materialise the traces again.")
        within = AlwaysTrue() if wanted is None else f"day >= '{min(wanted)}' and day <= '{max(wanted)}'"
        tasks = list(self._table.scan(within, snapshot_id=int(snapshot)).plan_files())
        if any(task.delete_files for task in tasks):
            raise ValueError("Another engine left row-level deletes in the governed table; rewrite its files there.")
        files = [task.file for task in tasks if wanted is None or day_of(task.file) in wanted]
        return sorted(files, key=lambda file: (day_of(file), file.file_path))

    def uri_of(self, file: DataFile) -> str:
        """Where a data file lies now; its `file_path` is the metadata's name for it."""
        return located(file.file_path, self._config.location) if self._config.movable else file.file_path

    def data_file(self, uri: str) -> DataFile:
        """The manifest's entry of a file, from its footer."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        name = named(uri, self._config.location) if self._config.movable else uri
        file = parquet_file_to_data_file(self._table.io, self._table.metadata, name)
        if file.partition[1] is None:  # Parquet keeps no bounds of a value over 4 KB
            file.partition[1] = next(read_files(self._config, [uri], ["model"]))["model"][0].as_py()
        return file


def day_of(file: DataFile) -> str:
    """YYYY-MM-DD."""
    return str(EPOCH + timedelta(days=file.partition[0]))
