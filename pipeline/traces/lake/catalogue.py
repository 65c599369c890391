"""Where the governed table is registered and lies: SQLite, PostgreSQL, REST or Glue; a directory or an S3 prefix.

Owns the configuration that workers get, the catalogue's connection, and the table's making: its partitions and its
properties. Refuses to know rows, and never prints what it was given to connect with.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.traces import lake_names as names
from pipeline.traces.lake.field_ids import first_version, numbered
from pipeline.traces.lake_config import LakeConfig
from pipeline.traces.rows import LATER, SCHEMA

if TYPE_CHECKING:  # PyIceberg brings SQLAlchemy along: half a second that loading the definitions does without
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

NAMESPACE, NAME = "governed", "traces"
PARTITIONS = ("day", "model", "consent")
MANIFESTS = 20
"""From so many manifests on, compaction merges them."""
BUSY_TIMEOUT_S = 60
OPEN_ATTEMPTS = 5


def local_lake(store: Store) -> LakeConfig:
    """The lake of a single machine: SQLite and files, all under `<store>/lake`, which moves and is copied as one."""
    folder = store.path(layout.LAKE)
    return LakeConfig(catalogue="sqlite", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")


@contextmanager
def open_table(config: LakeConfig) -> Generator[Table]:
    """The governed table, made on first use."""
    catalogue = load_catalogue(config)
    try:
        yield _table(catalogue, config)
    finally:
        catalogue.close()


def load_catalogue(config: LakeConfig) -> Catalog:
    """Connect. REST asks its server for the configuration; Glue asks nothing yet.

    Raises ValueError for a catalogue whose address is not known.
    """
    config.check_address()
    options: dict[str, Any] = {**config.options, "warehouse": config.warehouse}
    if config.catalogue == "rest":
        from pyiceberg.catalog.rest import RestCatalog

        return RestCatalog(NAMESPACE, uri=config.uri, **options)
    if config.catalogue == "glue":
        from pyiceberg.catalog.glue import GlueCatalog

        return GlueCatalog(NAMESPACE, **options)
    return _sql_catalogue(config, options)


def _sql_catalogue(config: LakeConfig, options: dict[str, Any]) -> Catalog:
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import DBAPIError

    url = make_url(config.uri)
    if config.catalogue == "sqlite":
        if url.database:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        url = url.update_query_dict({"timeout": str(BUSY_TIMEOUT_S)})
    else:
        url = url.set(drivername="postgresql+psycopg")
        options["pool_pre_ping"] = "true"
    options["uri"] = url.render_as_string(hide_password=False)
    for _ in range(OPEN_ATTEMPTS - 1):
        try:
            return SqlCatalog(NAMESPACE, **options)
        except DBAPIError:  # two processes that both make the catalogue's tables: the later one finds them
            time.sleep(0.2)
    return SqlCatalog(NAMESPACE, **options)


def _table(catalogue: Catalog, config: LakeConfig) -> Table:
    from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

    name = (NAMESPACE, NAME)
    try:
        table = catalogue.load_table(name)
    except NoSuchTableError:
        _create(catalogue, config)
        table = catalogue.load_table(name)
    except (FileNotFoundError, ValueError) as error:  # ValueError: names of a table that moves with its folder
        raise ValueError(
            f"The catalogue has a governed table whose metadata cannot be read in {config.location} ({error}). "
            "Set traces.lake.warehouse to where it is; of a table in the catalogue's folder copy the whole folder."
        ) from error
    location = table.location().rstrip("/")
    if not (location.endswith(names.TABLE) if config.movable else location == config.location):
        raise ValueError(
            f"The catalogue has the governed table at {table.location()}, and the warehouse would put it at "
            f"{config.location}. Set traces.lake.warehouse to where it is, or use another catalogue."
        )
    _add_columns(table)
    _check_columns(table)
    wanted = _properties()
    if any(table.properties.get(key) != value for key, value in wanted.items()):  # made by an older version
        with suppress(CommitFailedException), table.transaction() as transaction:
            transaction.set_properties(wanted)
        table.refresh()
    return table


def _create(catalogue: Catalog, config: LakeConfig) -> None:
    from pyiceberg.exceptions import (
        CommitFailedException,
        NamespaceAlreadyExistsError,
        NoSuchTableError,
        TableAlreadyExistsError,
    )
    from pyiceberg.transforms import IdentityTransform
    from sqlalchemy.exc import IntegrityError

    name = (NAMESPACE, NAME)
    location = names.LOCATION if config.movable else config.location
    with suppress(NamespaceAlreadyExistsError, IntegrityError):  # another process was faster; so below
        catalogue.create_namespace_if_not_exists(NAMESPACE)
    try:
        properties = _properties()
        with (
            catalogue.create_table_transaction(
                name, first_version(SCHEMA), location=location, properties=properties
            ) as creation,
            creation.update_spec() as spec,
        ):
            for column in PARTITIONS:
                spec.add_field(column, IdentityTransform(), column)
    except (TableAlreadyExistsError, CommitFailedException):
        try:
            catalogue.load_table(name)
        except NoSuchTableError:
            raise ValueError(f"The catalogue could not make the table {NAMESPACE}.{NAME}; look at its log.") from None


def _add_columns(table: Table) -> None:
    """Give a table of an earlier version, or one just made, the columns of LATER: its rows have null there."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.types import StringType

    for _ in range(OPEN_ATTEMPTS):
        names = set(table.schema().column_names)
        lacking = [path for path in LATER if not names & {".".join(path), f"{path[0]}.element.{path[-1]}"}]
        if not lacking:
            return
        try:
            with table.update_schema() as update:
                for path in lacking:
                    update.add_column(path, StringType())
        except CommitFailedException:  # another process adds them
            time.sleep(0.2)
        table.refresh()


def _check_columns(table: Table) -> None:
    """The files name columns by Iceberg's ids, which workers number without asking the catalogue."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    ours = pyarrow_to_schema(numbered(SCHEMA))
    if {f: ours.find_column_name(f) for f in ours.field_ids} != {
        f: table.schema().find_column_name(f) for f in table.schema().field_ids
    }:
        raise ValueError(
            f"The columns of the governed table at {table.location()} are not this version's. "
            "Give traces.lake another warehouse and catalogue, and materialise the traces again."
        )


def _properties() -> dict[str, str]:
    """Bounds of texts and user ids stay out of the manifests: an erasure has nothing to clear there.

    A lost race is ours to judge, by the day's digest: PyIceberg must not retry it.
    """
    bounded = {f"write.metadata.metrics.column.{name}": "truncate(16)" for name in (*PARTITIONS, "timestamp")}
    return {
        "write.metadata.metrics.default": "counts",
        **bounded,
        "commit.retry.num-retries": "0",
        "commit.manifest-merge.enabled": "true",
        "commit.manifest.min-count-to-merge": str(MANIFESTS),
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "100",
    }
