import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from pipeline.traces.sources import postgres_table
from pipeline.traces.sources.postgres_table import PostgresTable

from .conftest import read, reasons

COLUMNS = """
    id text, "timestamp" timestamptz, user_id text, session_id text, input text, output text, model text,
    latency_ms double precision, token_count integer, metadata jsonb"""
MOMENT = datetime(2026, 1, 5, 10, 0, 1, 500, UTC)


def create(connection: Any, table: str, columns: str = COLUMNS + ", user_consent boolean") -> None:
    name = sql.Identifier(*table.split("."))
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}; CREATE TABLE {} ({})").format(name, name, sql.SQL(columns)))


def insert(connection: Any, table: str, number: int = 1, **changes: Any) -> None:
    row = {
        "id": f"t{number:04d}", "timestamp": MOMENT, "user_id": "u", "session_id": "s", "model": "m",
        "input": json.dumps([{"role": "user", "content": f"What is {number} + 1?"}]), "output": f"{number + 1}",
        "latency_ms": 1500.0, "token_count": 12, "metadata": '{"region": "us"}', **changes,
    }  # fmt: skip
    names, values = sql.SQL(", ").join(map(sql.Identifier, row)), sql.SQL(", ").join(sql.Placeholder() * len(row))
    table_name = sql.Identifier(*table.split("."))
    connection.execute(sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(table_name, names, values), list(row.values()))


@pytest.fixture
def database(postgres_url: str) -> Iterator[Any]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        create(connection, "traces")
        yield connection


def test_a_table_is_read_day_by_day(database: Any, postgres_url: str) -> None:
    insert(database, "traces", 2, timestamp=MOMENT + timedelta(hours=13, minutes=59, seconds=58), user_consent=True)
    insert(database, "traces", 1, user_consent=False, metadata='{"user_consent": "true"}')
    insert(database, "traces", 3, timestamp=MOMENT + timedelta(hours=14), user_consent=None, metadata=None)
    source = PostgresTable(postgres_url, "traces")
    first, second = source.parts()
    assert [(p.name, p.version.split("-")[0]) for p in (first, second)] == [("2026-01-05", "2"), ("2026-01-06", "1")]
    assert first.size > second.size > 0
    one, two = read(source, first).traces
    (three,) = read(source, second).traces
    assert [t.trace_id for t in (one, two, three)] == ["t0001", "t0002", "t0003"]
    assert one.messages == [{"role": "user", "content": "What is 1 + 1?"}]
    assert (one.completion, one.model, one.user_id, one.session_id) == ("2", "m", "u", "s")
    assert (one.timestamp, one.latency_s, one.line, two.line) == (MOMENT.replace(tzinfo=None), 1.5, 1, 2)
    assert json.loads(one.metadata) == {"token_count": 12, "user_consent": False}
    assert json.loads(two.metadata) == {"region": "us", "token_count": 12, "user_consent": True}
    assert json.loads(three.metadata) == {"token_count": 12}


def test_the_version_of_a_day_is_its_content(database: Any, postgres_url: str) -> None:
    def versions() -> list[str]:
        return [part.version for part in PostgresTable(postgres_url, "traces").parts()]

    insert(database, "traces", 1)
    insert(database, "traces", 2, timestamp=MOMENT + timedelta(days=1))
    before = versions()
    database.execute("UPDATE traces SET output = output")
    assert versions() == before
    database.execute("UPDATE traces SET output = 'other' WHERE id = 't0001'")
    assert [a == b for a, b in zip(before, versions(), strict=True)] == [False, True]
    database.execute("DELETE FROM traces WHERE id = 't0002'")
    assert len(versions()) == 1


def test_a_table_of_another_schema_and_fewer_columns_is_read(database: Any, postgres_url: str) -> None:
    database.execute('CREATE SCHEMA IF NOT EXISTS "log ""s"')
    table = 'log "s.my traces'
    create(database, table, 'id bigint, "timestamp" timestamp, input jsonb, output json, extra bytea, metadata text')
    name = sql.Identifier(*table.split("."))
    value = '{"messages": [{"role": "user", "content": "Hi"}]}'
    database.execute(
        sql.SQL("INSERT INTO {} VALUES (7, '2026-01-05 10:00', %s, %s, 'x', 'kept')").format(name),
        [value, '{"role": "assistant", "content": "Yes"}'],
    )
    (trace,) = read(PostgresTable(postgres_url, table)).traces
    assert (trace.trace_id, trace.timestamp, trace.completion) == ("7", datetime(2026, 1, 5, 10), "Yes")
    assert (trace.messages, trace.metadata) == ([{"role": "user", "content": "Hi"}], '{"metadata":"kept"}')


def test_rows_that_are_no_trace_are_counted(database: Any, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_table, "MAX_LINE", 5000)
    insert(database, "traces", 1)
    insert(database, "traces", 2, latency_ms=float("nan"))
    insert(database, "traces", 3, id=None)
    insert(database, "traces", 4, output="x" * 6000)
    insert(database, "traces", 5, timestamp=None)
    insert(database, "traces", 6, timestamp="infinity")
    insert(database, "traces", 7, timestamp="0044-03-15 00:00:00+00 BC")
    insert(database, "traces", 8, input=None, output=None)
    source = PostgresTable(postgres_url, "traces")
    rows = {part.name: read(source, part) for part in source.parts()}
    assert {name: reasons(result) for name, result in rows.items()} == {
        "2026-01-05": ["schema:2:2026-01-05", "too_long:3:None", "no_content:4:2026-01-05", "schema:5:None"],
        "undated": ["schema:1:None", "schema:2:None", "schema:3:None"],
    }
    assert sum(len(result.traces) for result in rows.values()) == 1


def test_day_that_changed_since_its_listing_is_not_whole(database: Any, postgres_url: str) -> None:
    insert(database, "traces", 1)
    source = PostgresTable(postgres_url, "traces")
    parts = source.parts()
    insert(database, "traces", 2)
    rows = read(source, parts[0])
    assert (len(rows.traces), reasons(rows)) == (2, ["truncated_file:3:None"])
    database.execute("DELETE FROM traces")
    assert reasons(read(source, parts[0])) == ["truncated_file:1:None"]


@pytest.mark.parametrize(
    ("uri", "table", "message"),
    [
        ("{url}", "nowhere", r"UndefinedTable.*traces\.source\.table.*\.$"),
        ("{url}", "pg_class", r"UndefinedColumn.*traces\.source\.table.*\.$"),
        ("{url}", "traces", r"is empty\..*\.$"),
        ("postgresql://u:secret@127.0.0.1:1/d", "traces", r"OperationalError.*TRACES_DATABASE_URL.*\.$"),
    ],
)
def test_a_table_that_cannot_be_read_says_what_to_do(
    database: Any, postgres_url: str, uri: str, table: str, message: str
) -> None:
    source = PostgresTable(uri.format(url=postgres_url), table)
    with pytest.raises(ValueError, match=message) as raised:
        source.parts()
    assert "secret" not in f"{raised.value}{source.label}{raised.value.__cause__}"


def test_a_password_is_never_shown() -> None:
    for uri in ("postgresql://u:secret@host:5433/d", "host=host port=5433 dbname=d user=u password=secret"):
        assert PostgresTable(uri, "traces").label == "postgresql://host:5433/d, table traces"
    with pytest.raises(ValueError, match=r"\.$") as raised:
        PostgresTable("postgresql://u:secret@host:port:5433/d?x", "traces")
    assert "secret" not in str(raised.value)
