"""Reader of a PostgreSQL table of traces: one part a UTC day, through a server-side cursor. After a restart of the
server a read goes on where it stopped. Written from the field list of `TableRow`."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

import msgspec
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows, Trace
from pipeline.traces.sources import chat
from pipeline.traces.sources.fields import latency_s, marked, marks_of, metadata_of, metadata_text, put, said, seconds
from pipeline.traces.sources.lines import refusal
from pipeline.traces.sources.moments import day_of, utc, utc_or_none
from pipeline.traces.sources.protocol import BLOCK, MAX_LINE, Digest, SourcePart

ATTEMPTS = 7
"""Connections made for one day; before each new one a pause that doubles from FIRST_PAUSE_S."""
FIRST_PAUSE_S = 0.25
CONNECT_TIMEOUT_S = 10
PROBE_TIMEOUT_S = 3
UNDATED = "undated"
"""The part of the rows without a timestamp."""
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")

# A row is read and hashed as the JSON of all its columns, so that a table with more or fewer of them is read as well.
_ROWS: LiteralString = """
    SELECT "timestamp" AS moment, id::text AS id, row_to_json(r)::text AS row, "timestamp"::date::text AS day
    FROM {table} AS r"""
_VERSIONS: LiteralString = """
    SELECT day, count(*), sum(hashtextextended(row, 0)), sum(hashtextextended(row, 1)), sum(octet_length(row))
    FROM ({rows}) AS d GROUP BY day"""
_READ: LiteralString = """
    SELECT CASE WHEN octet_length(row) <= {limit} THEN row END
    FROM ({rows}) AS d ORDER BY moment, id, hashtextextended(row, 0) OFFSET {offset}"""
_ONE_DAY: LiteralString = """ WHERE "timestamp" >= {day}::date AND "timestamp" < {day}::date + 1"""
_ODD_DAY: LiteralString = """ WHERE "timestamp"::date::text IS NOT DISTINCT FROM {day}"""


class TableRow(msgspec.Struct):
    id: str | int
    timestamp: Any
    user_id: str | int | None = None
    session_id: str | int | None = None
    input: Any = None
    output: Any = None
    model: str | None = None
    latency_ms: Any = None
    end_time: Any = None
    token_count: Any = None
    metadata: Any = None
    user_consent: Any = None
    updated_at: Any = None
    version: Any = None
    release: Any = None
    environment: Any = None
    tags: Any = None


class PostgresTable:
    """`uri` is libpq's. A row's line is its place in the day, in the order of time."""

    def __init__(self, uri: str, table: str) -> None:
        self._uri = uri
        self._table = table
        self.label = f"{_address(uri)}, table {table}"

    def parts(self) -> list[SourcePart]:
        with self._telling(), self._connected() as connection:
            version_rows = connection.execute(sql.SQL(_VERSIONS).format(rows=self._rows())).fetchall()
        if not version_rows:
            raise ValueError(f"{self.label} is empty. Point traces.source.table to the table that holds the traces.")
        return sorted(_part(row) for row in version_rows)

    def probe(self) -> None:
        """Raises ValueError when the server cannot be reached, or the table not be read. Does not wait long."""
        wanted = sql.SQL('SELECT id, "timestamp" FROM {} LIMIT 1').format(sql.Identifier(*self._table.split(".")))
        with self._telling(), psycopg.connect(self._uri, connect_timeout=PROBE_TIMEOUT_S) as connection:
            if connection.execute(wanted).fetchone() is None:
                raise ValueError(f"{self.label} is empty. Point traces.source.table to the table of the traces.")

    def remains(self) -> str:
        return "delete the rows with the user's user_id, and from backups of the database"

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        """As the protocol says. A restart of the server is waited for, and the day is read on where it stopped.

        Raises ValueError when the day changed meanwhile, or the server stayed away.
        """
        done = 0
        version = None
        for attempt in range(ATTEMPTS):
            try:
                with self._connected() as connection:
                    now = self._version(connection, part)
                    if version not in (None, now):
                        raise ValueError(f"{self.label}: {part.name} changed while it was read. Run again.")
                    version = now
                    for texts in self._blocks(connection, part, done):
                        for text in texts:
                            digest.update((text or "").encode() + b"\n")
                        rows = _decoded(texts, done + 1)
                        done += len(texts)
                        yield rows
                break
            except psycopg.OperationalError as error:
                if attempt + 1 == ATTEMPTS:
                    raise self._unreadable(error) from None
                time.sleep(FIRST_PAUSE_S * 2**attempt)
            except psycopg.Error as error:
                raise self._unreadable(error) from None
        if version != part.version:
            detail = "the day changed since it was listed"
            yield Rows(rejected=[Rejection(done + 1, Reason.TRUNCATED_FILE, day=_dated(part.name), detail=detail)])

    def _blocks(self, connection: Any, part: SourcePart, offset: int) -> Iterator[list[str | None]]:
        wanted = sql.SQL(_READ).format(limit=MAX_LINE, rows=self._rows(part.name), offset=offset)
        mean = part.size // max(int(part.version.partition("-")[0]), 1)
        with connection.cursor(name="traces") as cursor:
            cursor.itersize = size = max(1, min(5_000, BLOCK // max(mean, 1)))
            cursor.execute(wanted)
            while texts := [text for (text,) in cursor.fetchmany(size)]:
                yield texts

    def _version(self, connection: Any, part: SourcePart) -> str:
        version_row = connection.execute(sql.SQL(_VERSIONS).format(rows=self._rows(part.name))).fetchone()
        return "" if version_row is None else _part(version_row).version

    def _rows(self, name: str | None = None) -> Any:
        rows = sql.SQL(_ROWS).format(table=sql.Identifier(*self._table.split(".")))
        if name is None:
            return rows
        # A range finds its rows by an index; infinity, years B.C. and no time at all are compared as text.
        day = _dated(name) or (None if name == UNDATED else name)
        where: LiteralString = _ONE_DAY if _dated(name) else _ODD_DAY
        return sql.Composed([rows, sql.SQL(where).format(day=day)])

    @contextmanager
    def _connected(self) -> Generator[Any]:
        """One snapshot of the table, in UTC."""
        with psycopg.connect(self._uri, connect_timeout=CONNECT_TIMEOUT_S) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            connection.execute("SET TIME ZONE 'UTC'")
            yield connection

    @contextmanager
    def _telling(self) -> Generator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> ValueError:
        message = str(error).partition("\n")[0]
        return ValueError(
            f"{self.label} cannot be read ({type(error).__name__}: {message}). "
            "Check that the server runs, TRACES_DATABASE_URL, traces.source.table and its columns id and timestamp."
        )


def _address(uri: str) -> str:
    try:
        parameters = conninfo_to_dict(uri)
    except psycopg.Error:  # its text may repeat the password
        raise ValueError(
            "TRACES_DATABASE_URL is no PostgreSQL address. Write postgresql://user@host/database."
        ) from None
    host, port = parameters.get("host", "localhost"), parameters.get("port", 5432)
    return f"postgresql://{host}:{port}/{parameters.get('dbname', '')}"


def _part(row: tuple[str | None, int, int, int, int]) -> SourcePart:
    day, count, *sums, size = row
    return SourcePart(day or UNDATED, "-".join([str(count), *(f"{int(s) % 2**64:016x}" for s in sums)]), int(size))


def _dated(name: str) -> str | None:
    return name if _DAY.fullmatch(name) else None


def _decoded(texts: list[str | None], first: int) -> Rows:
    rows = Rows()
    for line, text in enumerate(texts, first):
        if text is None:
            rows.rejected.append(Rejection(line, Reason.TOO_LONG, detail=f"a row of over {MAX_LINE} bytes"))
            continue
        row = None
        try:
            row = _decode(text)
            put(rows, _trace(row, line))
        except Exception as error:  # the boundary of one row: whatever it holds, it must not stop the rows beside it
            known = (None, None) if row is None else (str(row.id), day_of(row.timestamp))
            rows.rejected.append(refusal(line, error, *known))
    return rows


_decode = msgspec.json.Decoder(TableRow).decode


def _trace(row: TableRow, line: int) -> Trace | Rejection:
    latency_ms = seconds(row.latency_ms)
    trace = Trace(
        trace_id=str(row.id),
        observation_id=str(row.id),
        timestamp=utc(row.timestamp),
        model=row.model or "",
        user_id=None if row.user_id in (None, "") else str(row.user_id),
        session_id=None if row.session_id in (None, "") else str(row.session_id),
        messages=[],
        completion="",
        line=line,
        updated_at=utc_or_none(row.updated_at),
        latency_s=latency_s(row.timestamp, row.end_time, None if latency_ms is None else latency_ms / 1000),
        metadata=_metadata(row),
    )
    return said(trace, chat.parse(row.input, "user"), chat.parse(row.output, "assistant"))


def _metadata(row: TableRow) -> str:
    """The row's metadata, with the columns that have no other place. A no in either place is a no."""
    fields = metadata_of(row.metadata)
    if row.token_count is not None:
        fields.setdefault("token_count", row.token_count)
    if row.user_consent is False:
        fields["user_consent"] = False
    elif row.user_consent is not None:
        fields.setdefault("user_consent", row.user_consent)
    return marked(metadata_text(fields), **marks_of(row))
