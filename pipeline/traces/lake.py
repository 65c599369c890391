"""The governed table: Apache Iceberg through PyIceberg, its catalogue in SQLite, all under `<store>/lake`.

Owns the table's partitions and the one commit that replaces a day. Refuses to judge rows. The table's metadata holds
absolute paths, so the store is not moved; files that a failed write left behind are named by no snapshot.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.storage import Store
from pipeline.traces.records import SCHEMA

if TYPE_CHECKING:  # PyIceberg brings SQLAlchemy along: half a second that loading the definitions does without
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

NAMESPACE, NAME = "governed", "traces"
PARTITIONS = ("day", "model", "consent")
DIGEST = "traces.digest."
"""Table property per day: the digest of what the day was made from, set in the commit that replaced it."""


class Lake:
    """The open table. One writer at a time: a second one's commit fails and leaves the first one's."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def uri(self) -> str:
        return self._table.location()

    @property
    def snapshot(self) -> str:
        """Id of the current snapshot; empty before the first row."""
        current = self._table.current_snapshot()
        return str(current.snapshot_id) if current else ""

    def has(self, snapshot: str) -> bool:
        return not snapshot or self._table.snapshot_by_id(int(snapshot)) is not None

    def digests(self) -> dict[str, str]:
        """Day to the digest under which it was last replaced."""
        return {k.removeprefix(DIGEST): v for k, v in self._table.properties.items() if k.startswith(DIGEST)}

    def replace_day(self, day: str, rows: pa.Table, digest: str) -> None:
        """Put `rows` in the place of all that the table holds of `day`, in one commit: a reader sees either, whole.

        Raises OSError when the rows cannot be written; the table then stays as it was.
        """
        properties = {"traces.day": day, "traces.digest": digest}
        # The day may hold no row to delete, which PyIceberg warns about.
        with warnings.catch_warnings(action="ignore", category=UserWarning), self._table.transaction() as transaction:
            if day in self.digests():
                transaction.delete(f"day == '{day}'", snapshot_properties=properties)
            if rows.num_rows:
                transaction.append(rows, snapshot_properties=properties)
            transaction.set_properties({DIGEST + day: digest})

    def read(self, days: Iterable[str], snapshot: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of `days` at `snapshot` in the order of time, with all columns or the named ones."""
        names = list(columns) if columns is not None else SCHEMA.names
        wanted = list(days)
        if unknown := sorted(set(names) - set(SCHEMA.names)):
            raise ValueError(f"The governed table has no column {', '.join(unknown)}. Choose from {SCHEMA.names}.")
        if not wanted or not snapshot:
            return pa.schema([SCHEMA.field(name) for name in names]).empty_table()
        order = [name for name in ("timestamp", "trace_id") if name not in names]
        quoted = ", ".join(f"'{day}'" for day in wanted)
        scan = self._table.scan(f"day IN ({quoted})", (*names, *order), snapshot_id=int(snapshot))
        found = scan.to_arrow().sort_by([("timestamp", "ascending"), ("trace_id", "ascending")])
        return found.select(names).cast(pa.schema([SCHEMA.field(name) for name in names]))


@contextmanager
def open_lake(store: Store) -> Generator[Lake]:
    """The governed table of a store, made on first use."""
    from pyiceberg.catalog.sql import SqlCatalog

    folder = store.path("lake")
    folder.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    catalog = SqlCatalog("governed", **options)
    try:
        yield Lake(_table(catalog))
    finally:
        catalog.close()


def _table(catalog: SqlCatalog) -> Table:
    from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
    from pyiceberg.transforms import IdentityTransform

    name = (NAMESPACE, NAME)
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        pass
    try:
        catalog.create_namespace_if_not_exists(NAMESPACE)
        with catalog.create_table_transaction(name, SCHEMA) as creation, creation.update_spec() as spec:
            for column in PARTITIONS:
                spec.add_field(column, IdentityTransform(), column)
    except TableAlreadyExistsError:  # another process was faster
        pass
    return catalog.load_table(name)
