"""Reader of a PostgreSQL table of traces: one part a UTC day, through a server-side cursor. Its rows are read as
Langfuse's observations."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, LiteralString

import msgspec
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows
from pipeline.traces.sources.fields import metadata_of
from pipeline.traces.sources.langfuse import MODEL_CALL, Observation, add
from pipeline.traces.sources.protocol import BLOCK, MAX_LINE, Digest, SourcePart

CONNECT_TIMEOUT_S = 10
PROBE_TIMEOUT_S = 3
UNDATED = "undated"
"""The part of the rows without a timestamp, or with one that Python does not have (infinity, years B.C.)."""

# A row is read and hashed as the JSON of all its columns, so that a table with more or fewer of them is read as well.
_ROWS: LiteralString = """
    SELECT "timestamp" AS moment, id::text AS id, row_to_json(r)::text AS row,
    CASE WHEN "timestamp" >= '0001-01-01' AND "timestamp" < '10000-01-01' THEN "timestamp"::date::text
    ELSE {undated} END AS day FROM {table} AS r"""
_VERSIONS: LiteralString = """
    SELECT day, count(*), sum(hashtextextended(row, 0)), sum(hashtextextended(row, 1)), sum(octet_length(row))
    FROM ({rows}) AS d GROUP BY day"""
_READ: LiteralString = """
    SELECT CASE WHEN octet_length(row) <= {limit} THEN row END
    FROM ({rows}) AS d ORDER BY moment, id, hashtextextended(row, 0)"""
# A range finds its rows by an index.
_ONE_DAY: LiteralString = """ WHERE "timestamp" >= {day}::date AND "timestamp" < {day}::date + 1"""
_UNDATED: LiteralString = """
    WHERE ("timestamp" >= '0001-01-01' AND "timestamp" < '10000-01-01') IS NOT TRUE"""
_SAME = ("input", "output", "end_time", "updated_at", "version", "release", "environment", "tags")
"""Columns that Langfuse's observations name alike."""


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
        return sorted(map(_part, version_rows))

    def probe(self) -> None:
        wanted = sql.SQL('SELECT id, "timestamp" FROM {} LIMIT 1').format(sql.Identifier(*self._table.split(".")))
        with self._telling(), psycopg.connect(self._uri, connect_timeout=PROBE_TIMEOUT_S) as connection:
            if connection.execute(wanted).fetchone() is None:
                raise ValueError(f"{self.label} is empty. Point traces.source.table to the table of the traces.")

    def remains(self) -> str:
        return "delete the rows with the user's user_id, and from backups of the database"

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        """As the protocol says. Raises ValueError when the server goes away meanwhile: then the run reads again."""
        wanted = sql.SQL(_READ).format(limit=MAX_LINE, rows=self._rows(part.name))
        mean = part.size // max(int(part.version.partition("-")[0]), 1)
        size, done = max(1, min(5_000, BLOCK // max(mean, 1))), 0
        with self._telling(), self._connected() as connection:
            row = connection.execute(sql.SQL(_VERSIONS).format(rows=self._rows(part.name))).fetchone()
            with connection.cursor(name="traces") as cursor:
                cursor.itersize = size
                cursor.execute(wanted)
                while texts := cursor.fetchmany(size):
                    rows = Rows()
                    for (text,) in texts:
                        done += 1
                        digest.update((text or "").encode() + b"\n")
                        if text is None:
                            detail = f"a row of over {MAX_LINE} bytes"
                            rows.rejected.append(Rejection(done, Reason.TOO_LONG, detail=detail))
                        else:
                            add(rows, done, partial(_observation, text))
                    yield rows
        if row is None or _part(row).version != part.version:
            detail = "the day changed since it was listed"
            yield Rows(rejected=[Rejection(done + 1, Reason.TRUNCATED_FILE, detail=detail)])

    def _rows(self, name: str | None = None) -> Any:
        rows = sql.SQL(_ROWS).format(table=sql.Identifier(*self._table.split(".")), undated=UNDATED)
        if name is None:
            return rows
        where: LiteralString = _UNDATED if name == UNDATED else _ONE_DAY
        return sql.Composed([rows, sql.SQL(where).format(day=name)])

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
            message = str(error).partition("\n")[0]
            raise ValueError(
                f"{self.label} cannot be read ({type(error).__name__}: {message}). "
                "Check that the server runs, TRACES_DATABASE_URL, traces.source.table and its columns id and timestamp."
            ) from None


def _address(uri: str) -> str:
    try:
        parameters = conninfo_to_dict(uri)
    except psycopg.Error:  # its text may repeat the password
        raise ValueError(
            "TRACES_DATABASE_URL is no PostgreSQL address. Write postgresql://user@host/database."
        ) from None
    host, port = parameters.get("host", "localhost"), parameters.get("port", 5432)
    return f"postgresql://{host}:{port}/{parameters.get('dbname', '')}"


def _part(row: tuple[str, int, int, int, int]) -> SourcePart:
    day, count, *sums, size = row
    return SourcePart(day, "-".join([str(count), *(f"{int(s) % 2**64:016x}" for s in sums)]), int(size))


def _observation(text: str) -> Observation:
    """A row in Langfuse's words. Columns without a place there are metadata, and a no to consent in either is a no."""
    row = msgspec.json.decode(text, type=dict[str, Any])
    others = {name: row[name] for name in ("token_count", "user_consent") if row.get(name) is not None}
    refused = {"user_consent": False} if row.get("user_consent") is False else {}
    ids = {name: str(row[name]) for name in ("id", "user_id", "session_id") if row.get(name) not in (None, "")}
    latency = row.get("latency_ms")
    return msgspec.convert(
        {
            **{name: row.get(name) for name in _SAME},
            **{"trace_id": ids.get("id"), "type": MODEL_CALL, "start_time": row.get("timestamp")},
            **{"provided_model_name": row.get("model"), **ids},
            "latency": latency / 1000 if isinstance(latency, int | float) else latency,
            "metadata": {**others, **metadata_of(row.get("metadata")), **refused},
        },
        Observation,
    )
