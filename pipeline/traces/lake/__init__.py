"""The governed table: Apache Iceberg through PyIceberg. A change is one commit that swaps data files and sets the
digests of their days, so that several processes may write at once."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core.storage import Record
from pipeline.traces.lake.catalogue import LakeConfig, governed_table, load_catalogue, local_lake
from pipeline.traces.lake.files import count_rows, filesystem, path_of, read_files, write_file
from pipeline.traces.lake_config import located, named
from pipeline.traces.rows import SCHEMA

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

__all__ = ["DayReplaced", "Lake", "LakeConfig", "SweepResult", "local_lake", "open_lake"]

DIGEST = "traces.digest."
"""Table property per day: the digest of what the day was made from, set in the commit that replaced it."""
COMMIT = "traces.commit"
"""Snapshot property: the id of our commit, by which one whose answer was lost is known again."""
ATTEMPTS = 40
SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.05, 5.0
ORDER = ("timestamp", "trace_id", "observation_id")
T = TypeVar("T")


class DayReplaced(ValueError):
    """Another run replaced a day between this one's reading of the table and its commit."""


class SweepResult(Record):
    files: int = 0
    bytes: int = 0


class TableChange(NamedTuple):
    removed: Sequence[DataFile]
    added: Sequence[DataFile]


class Lake:
    """The open table, and the days' digests as they were when it was opened: a commit expects those. Of processes that
    replace the same day the first wins, and the others raise DayReplaced, or return where the digest is their own."""

    def __init__(self, table: Table, config: LakeConfig) -> None:
        self._table, self._config = table, config
        self._seen = self.digests()

    @property
    def uri(self) -> str:
        return self._config.location

    def digests(self) -> dict[str, str]:
        return {k.removeprefix(DIGEST): v for k, v in self._table.properties.items() if k.startswith(DIGEST)}

    @property
    def snapshot(self) -> str:
        """Id of the current snapshot; empty before the first commit."""
        current = self._table.current_snapshot()
        return str(current.snapshot_id) if current else ""

    def has(self, snapshot: str) -> bool:
        return not snapshot or self._table.snapshot_by_id(int(snapshot)) is not None

    def files(self, days: Iterable[str], snapshot: str) -> list[str]:
        return [self._uri_of(file) for file in self._data_files(days, snapshot)]

    def models(self, days: Iterable[str]) -> set[str]:
        """Models that have rows on these days, from the manifests alone."""
        return {file.partition[1] for file in self._data_files(days)}

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
        return read_files(self._config, self.files(days, snapshot), columns, where)

    def count(self, where: pc.Expression, days: Collection[str] | None = None) -> dict[str, int]:
        """Day to its number of rows for which `where` holds; no zeros."""
        days_of = {self._uri_of(file): _day_of(file) for file in self._data_files(days)}
        counts = Counter[str]()
        for uri, rows in count_rows(self._config, list(days_of), where).items():
            counts[days_of[uri]] += rows
        return dict(counts)

    def replace_day(self, day: str, files: Sequence[str], digest: str) -> None:
        """Replace all rows of `day` by those of `files` (from `write_file`).

        Raises DayReplaced when another run did with another digest, OSError when a file or the catalogue fails; the
        table then stays as it was.
        """
        added = [self._data_file(uri) for uri in files]
        summary = {"traces.day": day, "traces.digest": digest}
        self._commit(lambda: TableChange(self._data_files([day]), added), {day: digest}, summary)

    def erase(self, gone: pc.Expression, digests: Mapping[str, str]) -> None:
        """Delete the rows for which `gone` holds from every day and set the days' digests: one commit.

        Older snapshots hold the rows until `expire`, the disk until `sweep`. Raises as `replace_day` does.
        """

        def change() -> TableChange:
            files, written = {self._uri_of(file): file for file in self._data_files()}, list[str]()
            affected = count_rows(self._config, list(files), gone)
            for uri in affected:
                rest = read_files(self._config, [uri], where=~gone)
                written += write_file(self._config, _day_of(files[uri]), "erased", rest)
            return TableChange([files[uri] for uri in affected], [self._data_file(uri) for uri in written])

        self._commit(change, digests, {"traces.erasure": "true"})

    def drop_days(self, days: Iterable[str]) -> None:
        wanted = dict.fromkeys(days)
        if wanted:
            dropped = {"traces.dropped": ",".join(wanted)}
            self._commit(lambda: TableChange(self._data_files(wanted), []), wanted, dropped)

    def expire(self, older_than: datetime | None) -> list[str]:
        """Remove the snapshots made before `older_than` (None: all) but the current one; returns their ids. Their files
        stay until `sweep`."""
        limit = older_than.timestamp() * 1000 if older_than is not None else float("inf")

        def expire() -> list[str]:
            kept = {ref.snapshot_id for ref in self._table.refs().values()}
            ids = [s.snapshot_id for s in self._table.snapshots() if s.timestamp_ms < limit]
            old = [id for id in ids if id not in kept]
            if old:
                self._table.maintenance.expire_snapshots().by_ids(old).commit()
            return list(map(str, old))

        return self._attempts(expire)

    def sweep(self, grace_s: float) -> SweepResult:
        """Delete the files that no retained snapshot names and that are older than `grace_s`: younger ones may be of a
        commit in flight. 0 is for when no run is on. Raises OSError, and deletes nothing, where metadata cannot be
        read. A bucket that keeps versions keeps those of deleted files."""
        from pyarrow.fs import FileSelector, FileType

        before, fs = datetime.now(UTC) - timedelta(seconds=grace_s), filesystem(self._config)
        # Listed first: a file that is committed meanwhile is reachable by the time the metadata is read.
        listed = fs.get_file_info(FileSelector(path_of(self.uri), recursive=True, allow_not_found=True))
        self._table.refresh()
        named_now = self._reachable()
        garbage = [f for f in listed if f.type == FileType.File and f.path not in named_now and f.mtime <= before]
        for file in garbage:
            fs.delete_file(file.path)
        return SweepResult(files=len(garbage), bytes=sum(file.size for file in garbage))

    def _reachable(self) -> set[str]:
        """Paths of all files that the table's metadata names."""
        metadata, io = self._table.metadata, self._table.io
        names = {self._table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
        names.update(s.statistics_path for s in (*metadata.statistics, *metadata.partition_statistics))
        for snapshot in metadata.snapshots:
            names.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(io):
                if manifest.manifest_path not in names:
                    names.add(manifest.manifest_path)
                    names.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io))
        return {path_of(self._located(name)) for name in names}

    def _commit(
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

        self._attempts(attempt)
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

    def _attempts(self, attempt: Callable[[], T]) -> T:
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

    def _data_files(self, days: Iterable[str] | None = None, snapshot: str | None = None) -> list[DataFile]:
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
        files = [task.file for task in tasks if wanted is None or _day_of(task.file) in wanted]
        return sorted(files, key=lambda file: (_day_of(file), file.file_path))

    def _uri_of(self, file: DataFile) -> str:
        return self._located(file.file_path)

    def _located(self, name: str) -> str:
        """Where a file lies now that the metadata calls `name`."""
        return located(name, self.uri) if self._config.movable else name

    def _data_file(self, uri: str) -> DataFile:
        """The manifest's entry of a file, from its footer."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        name = named(uri, self.uri) if self._config.movable else uri
        file = parquet_file_to_data_file(self._table.io, self._table.metadata, name)
        if file.partition[1] is None:  # Parquet keeps no bounds of a value over 4 KB
            file.partition[1] = next(read_files(self._config, [uri], ["model"]))["model"][0].as_py()
        return file


@contextmanager
def open_lake(config: LakeConfig) -> Generator[Lake]:
    with closing(load_catalogue(config)) as catalogue:
        yield Lake(governed_table(catalogue, config), config)


def _day_of(file: DataFile) -> str:
    """YYYY-MM-DD."""
    return str(date(1970, 1, 1) + timedelta(days=file.partition[0]))
