"""The governed table: Apache Iceberg through PyIceberg. A change is one commit that swaps data files (`commits`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core.storage import Record
from pipeline.traces.lake.catalogue import MANIFESTS, LakeConfig, local_lake, open_table
from pipeline.traces.lake.commits import DayReplaced, SharedTable, TableChange, day_of
from pipeline.traces.lake.files import count_rows, read_files, write_files
from pipeline.traces.lake.sweeper import SweepResult, paths_of, sweep
from pipeline.traces.rows import SCHEMA

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

__all__ = ["Compacted", "DayReplaced", "Lake", "LakeConfig", "SweepResult", "local_lake", "open_lake"]

SMALL_BYTES = 64 << 20
"""Smaller files are compacted."""
ORDER = ("timestamp", "trace_id", "observation_id")


class Compacted(Record):
    """Data files before and after, over the days that had several small ones."""

    files_before: int = 0
    files_after: int = 0
    days: tuple[str, ...] = ()


class Lake(SharedTable):
    """The open table. Processes may write at once; of those that replace the same day the first wins, and the others
    raise DayReplaced, or return where the digest is their own."""

    def __init__(self, table: Table, config: LakeConfig) -> None:
        super().__init__(table, config)
        self._expired_paths: set[str] = set()

    @property
    def uri(self) -> str:
        return self._config.location

    def replace_day(self, day: str, files: Sequence[str], digest: str) -> None:
        """Replace all rows of `day` by those of `files` (from `write_files`).

        Raises DayReplaced when another run did with another digest, OSError when a file or the catalogue fails; the
        table then stays as it was.
        """
        added = [self.data_file(uri) for uri in files]
        assert all(day_of(file) == day for file in added), f"files of other days than {day}"

        def change() -> TableChange:
            removed = self.data_files([day])
            if again := {self.uri_of(file) for file in removed} & set(files):
                raise ValueError(f"{sorted(again)[0]} is in the table already; write the day's files again.")
            return TableChange(removed, added)

        self.commit(change, {day: digest}, {"traces.day": day, "traces.digest": digest})

    def files(self, days: Iterable[str], snapshot: str) -> list[str]:
        return [self.uri_of(file) for file in self.data_files(days, snapshot)]

    def models(self, days: Iterable[str]) -> Mapping[str, Mapping[str, int]]:
        """Day to its models with their number of rows, from the manifests alone."""
        row_counts = defaultdict[str, Counter[str]](Counter)
        for file in self.data_files(days):
            row_counts[day_of(file)][file.partition[1]] += file.record_count
        return {**row_counts}

    def read(
        self,
        days: Iterable[str],
        snapshot: str,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
    ) -> pa.Table:
        """The rows of `days` at `snapshot` in the order of time, with all columns or the named ones."""
        names = list(columns) if columns is not None else SCHEMA.names
        order = [name for name in ORDER if name not in names]
        record_batches = list(self.batches(days, snapshot, [*names, *order], where))
        table = pa.Table.from_batches(record_batches, pa.schema([SCHEMA.field(name) for name in (*names, *order)]))
        return table.sort_by([(name, "ascending") for name in ORDER]).select(names)

    def batches(
        self, days: Iterable[str], snapshot: str, columns: Sequence[str], where: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of `days` at `snapshot`, day by day in no further order; a few row groups in memory at a time."""
        if unknown := sorted(set(columns) - set(SCHEMA.names)):
            raise ValueError(f"The governed table has no column {', '.join(unknown)}. Choose from {SCHEMA.names}.")
        return read_files(self._config, self.files(days, snapshot), columns, where)

    def rows_of(self, users: Collection[str], since: datetime | None) -> dict[str, int]:
        """Day to its number of rows of `users` (at or after `since`, UTC unless it says otherwise); no zeros."""
        return self.count(_of(users, since))

    def count(self, where: pc.Expression, days: Collection[str] | None = None) -> dict[str, int]:
        """Day to its number of rows for which `where` holds; no zeros."""
        files = self.data_files(days)
        counts = count_rows(self._config, [self.uri_of(file) for file in files], where)
        day_counts = Counter[str]()
        for file in files:
            day_counts[day_of(file)] += counts.get(self.uri_of(file), 0)
        return {day: rows for day, rows in day_counts.items() if rows}

    def erase(self, users: Collection[str], since: datetime | None, digests: Mapping[str, str]) -> None:
        """Delete the rows of `users` (at or after `since`) from every day and set the days' digests: one commit.

        Older snapshots hold the rows until `expire`, the disk until `sweep`. Raises as `replace_day` does.
        """
        gone = _of(users, since)
        rewritten: dict[str, list[DataFile]] = {}
        clean: set[str] = set()

        def change() -> TableChange:
            files = {self.uri_of(file): file for file in self.data_files()}
            unknown = [uri for uri in files if uri not in rewritten and uri not in clean]
            affected = count_rows(self._config, unknown, gone)
            clean.update(set(unknown) - affected.keys())
            for uri in affected:
                rest = read_files(self._config, [uri], where=~gone)
                rewritten[uri] = self._written(day_of(files[uri]), "erased", rest)
            removed = [file for uri, file in files.items() if uri in rewritten]
            return TableChange(removed, [new for file in removed for new in rewritten[self.uri_of(file)]])

        self.commit(change, digests, {"traces.erasure": "true"})

    def drop_days(self, days: Iterable[str]) -> None:
        wanted = dict.fromkeys(days)
        if wanted:
            self.commit(lambda: TableChange(self.data_files(wanted), []), wanted, {"traces.dropped": ",".join(wanted)})

    def expire(self, older_than: datetime | None, keep: Collection[str] = ()) -> list[str]:
        """Remove the snapshots made before `older_than` (None: all) but the current one and `keep`; returns their ids.
        Their files stay until `sweep`, of this Lake or after its grace."""
        limit = _utc(older_than).timestamp() * 1000 if older_than is not None else float("inf")

        def expire() -> list[str]:
            protected = {ref.snapshot_id for ref in self._table.refs().values()}
            old = [s for s in self._table.snapshots() if s.timestamp_ms < limit and str(s.snapshot_id) not in keep]
            old = [s for s in old if s.snapshot_id not in protected]
            if old:
                self._expired_paths |= paths_of(self._config, self._table, old)
                self._table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in old]).commit()
            return [str(s.snapshot_id) for s in old]

        return self.attempts(expire)

    def sweep(self, grace_s: float) -> SweepResult:
        """Delete files that no retained snapshot names: those of snapshots that `expire` removed, and others older than
        `grace_s`, as younger ones may be of a commit in flight. 0 is for when no run is on."""
        return sweep(self._config, self._table, self._expired_paths, grace_s)

    def compact(self) -> Compacted:
        """Rewrite files under SMALL_BYTES of one partition into few, one commit a day; same rows, same digests.
        A day that another run replaces meanwhile waits for the next compaction."""
        small: dict[str, list[str]] = {}
        for (day, *_), group in groupby(sorted(self.data_files(), key=_partition), key=_partition):
            few = [self.uri_of(file) for file in group if file.file_size_in_bytes < SMALL_BYTES]
            if len(few) > 1:
                small.setdefault(day, []).extend(few)
        after = {day: rows for day, uris in small.items() if (rows := self._compact_day(day, uris)) is not None}
        current = self._table.current_snapshot()
        if current is not None and len(current.manifests(self._table.io)) >= MANIFESTS:
            self.attempts(self._merge_manifests)
        before = sum(len(small[day]) for day in after)
        return Compacted(files_before=before, files_after=sum(after.values()), days=tuple(after))

    def _compact_day(self, day: str, uris: Sequence[str]) -> int | None:
        added = self._written(day, "compacted", read_files(self._config, uris))

        def change() -> TableChange:
            removed = [file for file in self.data_files([day]) if self.uri_of(file) in set(uris)]
            if len(removed) < len(uris):
                raise DayReplaced(f"{day} was replaced while it was compacted; compact again.")
            return TableChange(removed, added)

        try:
            digest = self.digests().get(day)
            self.commit(change, {day: digest} if digest is not None else {}, {"traces.compacted": day})
        except DayReplaced:
            return None
        return len(added)

    def _merge_manifests(self) -> None:
        """An empty append merges the manifests and drops those of deleted files alone."""
        with self._table.transaction() as transaction, transaction.update_snapshot().merge_append():
            pass

    def _written(self, day: str, name: str, rows: Iterable[pa.RecordBatch]) -> list[DataFile]:
        return [self.data_file(uri) for uri in write_files(self._config, day, name, rows)]


@contextmanager
def open_lake(config: LakeConfig) -> Generator[Lake]:
    with open_table(config) as table:
        yield Lake(table, config)


def _partition(file: DataFile) -> tuple[str, str, bool]:
    return day_of(file), file.partition[1], file.partition[2]


def _of(users: Collection[str], since: datetime | None) -> pc.Expression:
    """Whether a row is of one of `users` and not older than `since`; false, never null, for a row without a user."""
    theirs = pc.field("user_id").isin(pa.array(sorted(users), pa.string()))
    if since is None:
        return theirs
    return theirs & (pc.field("timestamp") >= pa.scalar(_utc(since), SCHEMA.field("timestamp").type))


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
