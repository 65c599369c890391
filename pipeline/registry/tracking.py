"""MLflow's SQLite database under the data root: created in one step, because MLflow makes its tables without a
transaction, and with its paths of artifacts corrected after the root was moved."""

import logging
import os
import sqlite3
from contextlib import closing, suppress
from urllib.parse import quote

from pipeline.core import layout
from pipeline.core.locations import sqlite_file, sqlite_url
from pipeline.core.storage import Store, claimed_folder

SERVED = "mlflow-artifacts:/"
"""Artifacts of the default experiment: with the server that shows it."""
BUSY_TIMEOUT_S = 60
PATHS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("logged_models", "artifact_location"),
)
"""Tables and columns with paths of artifacts."""


def local_tracking(store: Store) -> str:
    """The URI of MLflow on SQLite under the data root. Raises ValueError where paths in it cannot be corrected."""
    database = store.path(layout.MLFLOW_DATABASE)
    if database.is_file():
        try:
            with closing(sqlite3.connect(database, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection:
                if moved := _moved(connection, store):
                    connection.execute("BEGIN IMMEDIATE")
                    for table, column in PATHS:
                        connection.executemany(_REPLACE.format(table=table, column=column), moved)
                    connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise ValueError(
                f"{database} has the paths of another place, or cannot be read ({error}). Make it readable and "
                "writable, or restore it from a backup."
            ) from error
    return sqlite_url(database)


def ensure_database(uri: str) -> None:
    """Create MLflow's tables where the address is a file of SQLite that is not there yet."""
    path = sqlite_file(uri)
    if path is None or path.exists():
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    be_quiet()
    with claimed_folder(path) as folder:
        staged = folder / path.name
        SqlAlchemyStore(sqlite_url(staged), SERVED).engine.dispose()
        with suppress(FileExistsError):
            os.link(staged, path)


def has_database(uri: str) -> bool:
    """False where the address is a file of SQLite that is not there."""
    return (path := sqlite_file(uri)) is None or path.exists()


def be_quiet() -> None:
    """No logs of migrations."""
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


_REPLACE = (
    "UPDATE {table} SET {column} = :here || substr({column}, length(:former) + 1) "
    "WHERE {column} = :former OR substr({column}, 1, length(:former) + 1) = :former || '/'"
)


def _moved(connection: sqlite3.Connection, store: Store) -> list[dict[str, str]]:
    """Former and present URI of the artifacts (`mlflow/<name>`) of each experiment whose data root was moved."""
    moved: list[dict[str, str]] = []
    for name, location in connection.execute("SELECT name, artifact_location FROM experiments"):
        here = store.path(layout.MLFLOW, name)
        ours = location.startswith("file://") and location.endswith(f"/{layout.MLFLOW}/{quote(name)}")
        if ours and location != here.as_uri() and here.is_dir():
            moved.append({"former": location, "here": here.as_uri()})
    return moved
