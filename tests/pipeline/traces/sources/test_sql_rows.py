"""Logged calls by a query: PostgreSQL for real, and SQLite."""

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pipeline.recipe.sources import RowsSource
from pipeline.traces.rows import Rows
from pipeline.traces.sources import daily_parts, sql_rows
from pipeline.traces.sources.protocol import SourcePart
from pipeline.traces.sources.sql_rows import QueryRows

from .conftest import all_of, read, reasons

MOMENT = datetime(2026, 1, 5, 10, 0, 1, 500, UTC)
FIELDS: dict[str, Any] = {
    "prompt": "input", "completion": "output", "id": "id", "time": "timestamp", "user": "user_id", "model": "model",
    "session": "session_id", "latency_ms": "latency_ms", "metadata": ["metadata", "token_count", "user_consent"],
}  # fmt: skip
QUERY = "SELECT * FROM traces"


def source_of(url: str, query: str = QUERY, since: date = date(2026, 1, 5), **fields: Any) -> QueryRows:
    until = date(2026, 1, 7)
    return QueryRows(url, RowsSource(query=query, since=since, until=until, fields={**FIELDS, **fields}))


def by_part(source: QueryRows) -> dict[str, Rows]:
    return {part.name: read(source, part) for part in source.parts()}


def insert(connection: Any, number: int, table: str = "traces", mark: str = "%s", **changes: Any) -> None:
    row = {
        "id": f"t{number}", "timestamp": MOMENT, "user_id": "u", "session_id": "s", "model": "m",
        "input": json.dumps([{"role": "user", "content": f"What is {number} + 1?"}]), "output": f"{number + 1}",
        "latency_ms": 1500.0, "token_count": 12, "metadata": '{"region": "us"}', "user_consent": True, **changes,
    }  # fmt: skip
    names, marks = ", ".join(f'"{name}"' for name in row), ", ".join([mark] * len(row))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))


@pytest.fixture
def database(postgres_url: str) -> Iterator[Any]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("""
            DROP TABLE IF EXISTS traces; CREATE TABLE traces (id text, "timestamp" timestamptz, user_id text,
            session_id text, input jsonb, output text, model text, latency_ms numeric, token_count integer,
            metadata jsonb, user_consent boolean)
        """)
        yield connection


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[sqlite3.Connection, str]]:
    path = tmp_path / "logs of calls.db"
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("CREATE TABLE traces (timestamp, id, user_id, session_id, input, output, model, latency_ms, "
                           "token_count, metadata, user_consent)")  # fmt: skip
        yield connection, f"sqlite:///{path}"
    connection.close()


@pytest.mark.slow
def test_a_table_of_postgresql_is_read_day_by_day(database: Any, postgres_url: str) -> None:
    insert(database, 2, timestamp=MOMENT + timedelta(hours=13, minutes=59, seconds=58))
    insert(database, 1, user_consent=False, metadata='{"user_consent": "true"}')
    insert(database, 3, timestamp=MOMENT + timedelta(hours=14), user_consent=None, metadata=None, user_id=None)
    insert(database, 4, timestamp=MOMENT + timedelta(days=3))
    insert(database, 5, timestamp=None)
    parts = by_part(source_of(postgres_url))
    assert [*parts] == ["rows/2026-01-05", "rows/2026-01-06", "rows/2026-01-07", "rows/undated"]
    first, second, third, undated = parts.values()
    assert [trace.trace_id for trace in first.traces] == ["t1", "t2"]
    one, (three,) = first.traces[0], second.traces
    assert one.messages == [{"role": "user", "content": "What is 1 + 1?"}]
    assert (one.completion, one.model, one.user_id, one.session_id) == ("2", "m", "u", "s")
    assert (one.timestamp, one.latency_s, one.line) == (MOMENT.replace(tzinfo=None), 1.5, 1)
    assert json.loads(one.metadata) == {"token_count": 12, "user_consent": False}
    assert (three.trace_id, three.user_id, json.loads(three.metadata)) == ("t3", None, {"token_count": 12})
    assert (third.traces, reasons(undated)) == ([], ["schema:1:None"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "times"),
    [
        ("timestamptz", ("2026-01-05 23:59:59+00", "2026-01-05 23:00:00-01")),
        ("timestamp", ("2026-01-05 23:59:59", "2026-01-06")),
        ("date", ("2026-01-05", "2026-01-06")),
        ("text", ("2026-01-05T23:59:59Z", "2026-01-06 00:00:00")),
        ("bigint", ("1767657599", "1767657600")),
        ("numeric", ("1767657599999.5", "1767657600000")),
    ],
)
def test_a_day_is_cut_by_the_type_of_the_time(database: Any, postgres_url: str, column: str, times: Any) -> None:
    database.execute(f'DROP TABLE IF EXISTS timed; CREATE TABLE timed ("At" {column}, q text, a json, id uuid)')
    source = source_of(postgres_url, 'SELECT "At", q, a, id FROM timed', prompt="q", completion="a", time="At")
    assert read(source) == Rows()
    for n, time in enumerate(times):
        values = (time, f"Q{n}", '{"role": "assistant", "content": "A"}', f"{n:032x}")
        database.execute("INSERT INTO timed VALUES (%s, %s, %s, %s)", values)
    found = [[trace.messages[0]["content"] for trace in rows.traces] for rows in by_part(source).values()]
    assert found == [["Q0"], ["Q1"], [], []]


@pytest.mark.parametrize("times", [("2026-01-05 10:00", "2026-01-06T00:00:00Z"), (1767657599, 1767657600)])
def test_a_table_of_sqlite_is_read(file: tuple[sqlite3.Connection, str], times: tuple[Any, Any]) -> None:
    connection, url = file
    for number, time in enumerate(times):
        insert(connection, number, mark="?", timestamp=time)
    insert(connection, 3, mark="?", timestamp=None)
    first, second, _, undated = by_part(source_of(url)).values()
    assert [trace.trace_id for rows in (first, second) for trace in rows.traces] == ["t0", "t1"]
    assert reasons(undated) == ["schema:1:None"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM traces;",
        "SELECT * FROM traces -- all",
        "SELECT * FROM traces WHERE output LIKE '%' AND model <> ' :m'",
        "WITH t AS (SELECT * FROM traces) SELECT * FROM t ORDER BY id DESC LIMIT 5",
    ],
)
def test_a_query_is_taken_as_it_is(file: tuple[sqlite3.Connection, str], query: str) -> None:
    insert(file[0], 1, mark="?", timestamp="2026-01-05")
    assert len(read(source_of(file[1], query)).traces) == 1


@pytest.mark.slow
def test_rows_that_are_no_trace_are_counted(database: Any, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daily_parts, "MAX_LINE", 5000)
    insert(database, 1)
    insert(database, 2, latency_ms=float("nan"))
    insert(database, 3, output="x" * 6000)
    insert(database, 4, input=None, output=None)
    insert(database, 5, id=None)
    rows = read(source_of(postgres_url, "SELECT *, '\\xff'::bytea AS odd FROM traces WHERE id = 't1'"))
    assert reasons(rows) == ["malformed:1:None"]
    rows = by_part(source_of(postgres_url))["rows/2026-01-05"]
    assert reasons(rows) == ["schema:2:2026-01-05", "too_long:3:None", "no_content:4:2026-01-05"]
    assert [trace.trace_id[:4] for trace in rows.traces] == ["t1", "row-"]


@pytest.mark.slow
def test_the_digest_is_of_the_rows(database: Any, postgres_url: str) -> None:
    def digest() -> str:
        whole, source = hashlib.sha256(), source_of(postgres_url, id="model")
        all_of(source.rows(source.parts()[0], whole))
        return whole.hexdigest()

    insert(database, 1)
    insert(database, 2)
    before = digest()
    database.execute("UPDATE traces SET output = output WHERE id = 't1'")  # moves it behind the other
    assert digest() == before
    database.execute("UPDATE traces SET output = 'other' WHERE id = 't1'")
    assert digest() != before


@pytest.mark.slow
def test_a_server_that_goes_away_breaks_the_day_off(
    database: Any, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (daily_parts, sql_rows):
        monkeypatch.setattr(module, "BLOCK", 1)
    for number in range(1, 6):
        insert(database, number)
    source = source_of(postgres_url)
    blocks = source.rows(source.parts()[0], hashlib.sha256())
    begun = [next(blocks), next(blocks)]
    database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    rest = all_of(blocks)
    assert [trace.trace_id for rows in begun for trace in rows.traces] == ["t1", "t2"]
    assert (rest.traces, reasons(rest)) == ([], ["truncated_file:3:2026-01-05"])
    assert "TRACES_DATABASE_URL" in rest.rejected[0].detail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "query", "fields", "message"),
    [
        ("", "SELECT * FROM nowhere", {}, r'UndefinedTable: relation "nowhere" does not exist\).*traces.source.query'),
        ("", "SELEC 1", {}, r"SyntaxError.*traces.source.query"),
        ("", "SELECT nextval('numbers') AS id, * FROM traces", {}, "read-only transaction"),
        ("", QUERY, {"time": "at"}, r"no column at \(fields.time\), but id, timestamp, user_id"),
        ("", QUERY, {"prompt": ["q.m", "question"]}, r"no column q.m or question \(fields.prompt\)"),
        ("", QUERY, {"time": "output"}, r"no times, ISO texts or epochs"),
        ("postgresql://u:secret@127.0.0.1:1/d", QUERY, {}, r"OperationalError.*TRACES_DATABASE_URL"),
        ("postgresql://u:secret@host:port:5433/d?x", QUERY, {}, "is no address of a database"),
        ("host=h password=secret", QUERY, {}, "is no address of a database"),
        ("mysql://u:secret@127.0.0.1:1/d", QUERY, {}, "needs a driver: pip install pymysql|OperationalError"),
    ],
)
def test_a_query_that_cannot_be_read_says_what_to_do(
    database: Any, postgres_url: str, url: str, query: str, fields: dict[str, Any], message: str
) -> None:
    database.execute("CREATE SEQUENCE IF NOT EXISTS numbers")
    insert(database, 1)
    with pytest.raises(ValueError, match=message) as raised:
        read(source_of(url or postgres_url, query, **fields))
    assert str(raised.value).endswith(".") and "secret" not in f"{raised.value}{raised.value.__cause__}"


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    source = source_of(f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(ValueError, match="unable to open database file"):
        source.probe()
    assert [*tmp_path.iterdir()] == []


def test_young_days_are_read_again(file: tuple[sqlite3.Connection, str]) -> None:
    def versions(days_ago: int) -> list[SourcePart]:
        day = datetime.now(UTC).date() - timedelta(days=days_ago)
        section = RowsSource(query=QUERY, since=day, until=day, fields=FIELDS)
        return QueryRows(file[1], section).parts()[:1]

    assert versions(4) == versions(4)
    assert versions(3) != versions(3)
    assert source_of(file[1], since=date(2026, 1, 8)).parts() == []


def test_a_source_is_looked_at_before_it_is_read(file: tuple[sqlite3.Connection, str]) -> None:
    source = source_of(file[1])
    with pytest.raises(ValueError, match=r"gives no row with a time\. Mend traces\.source\.query\.$"):
        source.probe()
    assert read(source) == Rows()
    insert(file[0], 1, mark="?", timestamp="2026-01-05")
    source.probe()
    assert "user's id" in source.remains()
