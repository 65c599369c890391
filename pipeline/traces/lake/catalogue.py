"""The catalogue of the governed table (SQLite, PostgreSQL, REST or Glue): connects, and creates the table on first use
with its partitions and properties. No error shows what it connects with."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core import layout
from pipeline.core.locations import sqlite_url
from pipeline.core.storage import Store
from pipeline.traces.lake.files import numbered_schema
from pipeline.traces.lake_config import LOCATION, LakeConfig
from pipeline.traces.rows import SCHEMA

if TYPE_CHECKING:  # PyIceberg brings SQLAlchemy along: half a second that loading the definitions does without
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

NAMESPACE, NAME = "governed", "traces"
PARTITIONS = ("day", "model", "consent")
MANIFESTS = 20
"""Number of manifests from which a commit merges them."""
BUSY_TIMEOUT_S = 60
PROPERTIES = {
    "write.metadata.metrics.default": "counts",
    **{f"write.metadata.metrics.column.{name}": "truncate(16)" for name in (*PARTITIONS, "timestamp")},
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": str(MANIFESTS),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Manifests hold no bounds of texts and user ids: an erasure would have to clear them. PyIceberg retries no commit, as
`Lake` compares the days' digests first."""


def local_lake(store: Store) -> LakeConfig:
    """SQLite and files under `<store>/lake`, a folder that can be moved and copied."""
    folder = store.path(layout.LAKE)
    return LakeConfig(catalogue="sqlite", uri=sqlite_url(folder / "catalog.db"), warehouse=f"file://{folder}")


def load_catalogue(config: LakeConfig) -> Catalog:
    """Raises ValueError where the catalogue's address is not known."""
    from pyiceberg.catalog import load_catalog
    from sqlalchemy.exc import DBAPIError

    config.check_address()
    kind = "sql" if config.catalogue in ("sqlite", "postgres") else config.catalogue
    options = {**config.options, "warehouse": config.warehouse, "type": kind}
    if config.uri:
        options["uri"] = _sql_url(config) if kind == "sql" else config.uri
    if config.catalogue == "postgres":
        options["pool_pre_ping"] = "true"
    with suppress(DBAPIError):  # two processes that both create the catalogue's tables: the later one finds them
        return load_catalog(NAMESPACE, **options)
    time.sleep(1)
    return load_catalog(NAMESPACE, **options)


def _sql_url(config: LakeConfig) -> str:
    from sqlalchemy.engine import make_url

    url = make_url(config.uri)
    if config.catalogue == "postgres":
        return url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
    return url.update_query_dict({"timeout": str(BUSY_TIMEOUT_S)}).render_as_string(hide_password=False)


def governed_table(catalogue: Catalog, config: LakeConfig) -> Table:
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.io.pyarrow import pyarrow_to_schema

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
    if table.location().rstrip("/") != _location(config):
        raise ValueError(
            f"The catalogue has the governed table at {table.location()}, and the warehouse would put it at "
            f"{config.location}. Set traces.lake.warehouse to where it is, or use another catalogue."
        )
    if pyarrow_to_schema(numbered_schema()).as_struct() != table.schema().as_struct():  # workers number them alone
        raise ValueError(
            f"The columns of the governed table at {table.location()} are not this version's. "
            "Give traces.lake another warehouse and catalogue, and materialise the traces again."
        )
    return table


def _create(catalogue: Catalog, config: LakeConfig) -> None:
    from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, TableAlreadyExistsError
    from pyiceberg.transforms import IdentityTransform
    from sqlalchemy.exc import IntegrityError

    with suppress(NamespaceAlreadyExistsError, IntegrityError):  # another process was faster; so below
        catalogue.create_namespace_if_not_exists(NAMESPACE)
    with suppress(TableAlreadyExistsError, CommitFailedException):
        creation = catalogue.create_table_transaction(
            (NAMESPACE, NAME), SCHEMA, location=_location(config), properties=PROPERTIES
        )
        with creation, creation.update_spec() as spec:
            for column in PARTITIONS:
                spec.add_field(column, IdentityTransform(), column)


def _location(config: LakeConfig) -> str:
    return LOCATION if config.movable else config.location
