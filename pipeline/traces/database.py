"""DuckDB as the stage uses it: one query at a time over files, within a memory limit, spilling into their folder."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_MB = 256


@contextmanager
def connect(
    spill: Path, database: Path | None = None, *, read_only: bool = False, memory_mb: int = MEMORY_MB
) -> Generator[DuckDBPyConnection]:
    """A connection that keeps to `memory_mb` and spills into `spill`. `database`: None for one in memory."""
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory_mb}MB",
        "temp_directory": str(spill / "spill"),
        "threads": "1",
        "preserve_insertion_order": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
    connection = duckdb.connect(str(database or ":memory:"), read_only=read_only, config=config)
    try:
        connection.execute("set timezone = 'UTC'")
        yield connection
    finally:
        connection.close()


def quoted(paths: Iterable[Path]) -> str:
    return "[" + ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths) + "]"
