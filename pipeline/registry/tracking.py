"""MLflow's database under the data root: made beside and linked whole, for MLflow makes its tables in fifty steps
without a transaction; and its paths of artifacts set to where the root lies now, after it was moved."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.core.unfinished import claimed_folder, unfinished_name

SQLITE = "sqlite:///"
SERVED = "mlflow-artifacts:/"
"""Where the experiment that MLflow adds by itself has its artifacts: with whatever server shows it."""
BUSY_TIMEOUT_S = 60
PATHS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("logged_models", "artifact_location"),
)
"""Tables and columns that hold paths of artifacts; which of them there are is a matter of MLflow's version."""


def local_tracking(store: Store) -> str:
    """The tracking and registry URI of MLflow on SQLite under the data root.

    Raises ValueError when the paths in it have to be set and cannot be.
    """
    database = store.path(layout.MLFLOW_DATABASE)
    if database.is_file():
        try:
            with closing(sqlite3.connect(database, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection:
                if moved := _moved(connection, store):
                    connection.execute("BEGIN IMMEDIATE")
                    for former, here in moved.items():
                        _replace(connection, former, here)
                    connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise ValueError(
                f"{database} has the paths of another place, or cannot be read ({error}). Make it readable and "
                "writable, or restore it from a backup."
            ) from error
    return f"{SQLITE}{database}"


def ensure_database(uri: str) -> None:
    """Make MLflow's tables where the address is a file of SQLite that is not there yet. Takes seconds, once.

    Of two processes that find none, one's stands; a kill leaves nothing of that name.
    """
    path = Path(uri.removeprefix(SQLITE))
    if not uri.startswith(SQLITE) or path.exists():
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    be_quiet()
    folder = unfinished_name(path)
    try:
        with claimed_folder(folder):
            staged = folder / path.name
            SqlAlchemyStore(f"{SQLITE}{staged}", SERVED).engine.dispose()
            with suppress(FileExistsError):
                os.link(staged, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def has_database(uri: str) -> bool:
    """False where the address is a file of SQLite that is not there: whoever only looks makes none."""
    return not uri.startswith(SQLITE) or Path(uri.removeprefix(SQLITE)).exists()


def be_quiet() -> None:
    """MLflow narrates its migrations otherwise, in the middle of what a person reads."""
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _moved(connection: sqlite3.Connection, store: Store) -> dict[str, str]:
    """URI of where an experiment's artifacts lay to where they lie: `mlflow/<its name>`, here as there."""
    if not _columns(connection, "experiments"):
        return {}
    moved: dict[str, str] = {}
    for name, location in connection.execute("SELECT name, artifact_location FROM experiments"):
        here = store.path(layout.MLFLOW, name)
        ours = location.startswith("file://") and location.endswith(f"/{layout.MLFLOW}/{quote(name)}")
        if ours and location != here.as_uri() and here.is_dir():
            moved[location] = here.as_uri()
    return moved


def _replace(connection: sqlite3.Connection, former: str, here: str) -> None:
    for table, column in PATHS:
        if column in _columns(connection, table):
            connection.execute(
                f"UPDATE {table} SET {column} = :here || substr({column}, length(:former) + 1) "
                f"WHERE {column} = :former OR substr({column}, 1, length(:former) + 1) = :former || '/'",
                {"here": here, "former": former},
            )


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
