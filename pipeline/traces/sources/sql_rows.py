"""Reader of logged calls in a database, by the recipe's query and SQLAlchemy. A UTC day is a part, read in one
read-only snapshot by a server-side cursor. Rows whose time is null are a part of their own."""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import msgspec
from sqlalchemy import URL, Connection, NullPool, column, create_engine, literal_column, make_url, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql import quoted_name

from pipeline.core.redaction import redacted
from pipeline.recipe.sources import RowsSource
from pipeline.traces.rows import Rows
from pipeline.traces.sources.daily_parts import ServerAway, daily_parts, day_range, read_pages
from pipeline.traces.sources.fields import UNITS
from pipeline.traces.sources.protocol import BLOCK, Digest, SourcePart
from pipeline.traces.sources.rows import RowMapping
from pipeline.traces.sources.shapes import plain, steps

DRIVERS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
"""Of an address that names none."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    "sqlite": {"timeout": 5},
    "postgresql": {"connect_timeout": 5},
    "mysql": {"connect_timeout": 5, "init_command": "SET time_zone = '+00:00', SESSION transaction_read_only = 1"},
}
OPTIONS = {"postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}}
MOST = 1_000
"""Rows that are fetched at once, unless they are long."""
UNDATED = "rows/undated"
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}")


class QueryRows:
    """A row's line is its place in its part, in the order of time."""

    def __init__(self, uri: str, section: RowsSource) -> None:
        self._url, self._section, self._mapping = _url(uri), section, RowMapping(section)
        # A colon is no parameter, and a comment at the end does not go on.
        query = (section.query or "").strip().rstrip(";").replace(":", "\\:") + "\n"
        self._rows = select(literal_column("*")).select_from(text(query).columns().subquery("r"))
        (self._time,) = self._mapping.mapping["time"]
        url = self._url
        self.label = f"a query to {URL.create(url.get_backend_name(), None, None, url.host, url.port, url.database)}"

    def parts(self) -> list[SourcePart]:
        days = list(daily_parts(self._section, "rows", self._section.identity[:16]))
        return [*days, days[-1]._replace(name=UNDATED)] if days else days

    def probe(self) -> None:
        with self._connected() as connection:
            if not self._sample(connection):
                raise ValueError(f"{self.label} gives no row with a time. Mend traces.source.query.")

    def remains(self) -> str:
        return "delete the rows with the user's id, and from backups of the database"

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        def put(block: Rows, row: dict[str, Any], line: int) -> int:
            self._mapping.put(block, row, line + 1)
            return line + 1

        return read_pages(part, digest, self._pages(part), put, repeats=False)

    def _pages(self, part: SourcePart) -> Iterator[list[tuple[bytes, dict[str, Any] | None]]]:
        """The content of each row, and its values unless they are no text. Raises ServerAway."""
        time = _column(self._time)
        with self._connected() as connection:
            sample = self._sample(connection)
            ids = [_column(name) for name in self._mapping.mapping.get("id", ()) if name in sample]
            rows = self._rows.where(time.is_(None)).order_by(*ids)
            if part.name != UNDATED and sample:
                first, end = _bounds(sample[self._time], part)
                rows = self._rows.where(time >= first, time < end).order_by(time, *ids)
            elif part.name != UNDATED:
                return
            result, size = connection.execution_options(stream_results=True).execute(rows).mappings(), 1
            while batch := [_content(dict(row)) for row in result.fetchmany(size)]:
                yield batch
                size = max(1, min(MOST, BLOCK // max(len(content) for content, _ in batch), 2 * size))

    def _sample(self, connection: Connection) -> dict[str, Any]:
        """A row with a time, if there is one. Raises ValueError for columns that the query does not have."""
        names = [*connection.execute(self._rows.limit(0)).keys()]
        for field in ("time", "prompt", "completion"):
            paths = self._mapping.mapping[field]
            if not any(path in names or steps(path)[0] in names for path in paths):
                raise ValueError(
                    f"{self.label} has no column {' or '.join(paths)} (fields.{field}), but {', '.join(names)}. Mend "
                    "traces.source.fields or traces.source.query."
                )
        row = connection.execute(self._rows.where(_column(self._time).is_not(None)).limit(1)).mappings().first()
        return {} if row is None else dict(row)

    @contextmanager
    def _connected(self) -> Generator[Connection]:
        """Raises ServerAway with the database's first line."""
        kind = self._url.get_backend_name()
        try:
            with create_engine(self._url, poolclass=NullPool, connect_args=ARGUMENTS.get(kind, {})).connect() as opened:
                yield opened.execution_options(**OPTIONS.get(kind, {}))
        except ModuleNotFoundError as error:
            raise ValueError(f"{self.label} needs a driver: pip install {error.name}.") from None
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            message = redacted(str(cause).strip().partition("\n")[0])
            raise ServerAway(
                f"{self.label} cannot be read ({type(cause).__name__}: {message}). Check that the server runs, "
                "TRACES_DATABASE_URL and traces.source.query."
            ) from None


def _url(address: str) -> URL:
    try:
        url = make_url(address)
    except (SQLAlchemyError, ValueError):  # its text may repeat the password
        raise ValueError(
            "TRACES_DATABASE_URL is no address of a database. Write postgresql://user@host/database, "
            "mysql://user@host/database or sqlite:////path/of/file.db."
        ) from None
    if url.drivername == "sqlite":  # it makes a file that is not there
        return url.set(database=f"file:{quote(url.database or '')}", query={"mode": "ro", "uri": "true"})
    return url.set(drivername=DRIVERS.get(url.drivername, url.drivername))


def _column(name: str) -> Any:
    return column(quoted_name(name, quote=True))


def _content(row: dict[str, Any]) -> tuple[bytes, dict[str, Any] | None]:
    try:
        values = plain(row)
    except UnicodeDecodeError:
        return repr(row).encode(), None
    return msgspec.json.encode(values, order="deterministic"), values


def _bounds(sample: Any, part: SourcePart) -> tuple[Any, Any]:
    """A day's first moment and the next day's, as values of the column's type. A time without a zone is UTC."""
    first, end = day_range(part)
    match sample:
        case datetime():
            return (first, end) if sample.tzinfo else (first.replace(tzinfo=None), end.replace(tzinfo=None))
        case date():
            return first.date(), end.date()
        case str() if _ISO.match(sample):
            return first.date().isoformat(), end.date().isoformat()
        case int() | float() | Decimal():
            per_second = next((unit for limit, unit in UNITS if abs(sample) < limit), 1)
            return int(first.timestamp()) * per_second, int(end.timestamp()) * per_second
        case _:
            raise ValueError("fields.time holds no times, ISO texts or epochs. Cast it in traces.source.query.")
