"""Langfuse's public API, answered as it documents it (SDK 5.0.4): keys, cursors, fields, limits, settled days."""

import base64
import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import httpx2
import pytest

from pipeline.core.storage import Store
from pipeline.recipe.sources import LangfuseApiSource
from pipeline.traces import materialize
from pipeline.traces.lake import local_lake
from pipeline.traces.records import GovernedTraces
from pipeline.traces.sources import langfuse_api
from pipeline.traces.sources.langfuse_api import LangfuseApi

from ..conftest import NOW, govern
from .conftest import all_of, read, reasons

pytestmark = pytest.mark.slow

DAY = date(2026, 1, 5)


KEYS = ("pk-lf-1", "sk-lf-1")
GROUPS = {
    "core": ("id", "traceId", "startTime", "endTime", "projectId", "parentObservationId", "type"),
    "basic": ("name", "level", "statusMessage", "version", "environment", "userId", "sessionId"),
    "time": ("completionStartTime", "createdAt", "updatedAt"),
    "io": ("input", "output"),
    "metadata": ("metadata",),
    "model": ("model", "internalModelId", "modelParameters"),
    "usage": ("usageDetails", "costDetails", "totalCost"),
    "prompt": ("promptId", "promptName", "promptVersion"),
    "metrics": ("latency", "timeToFirstToken"),
    "trace_context": ("tags", "release", "traceName"),
}
SHOWN = 200
"""Characters of a value of metadata that are shown, where it is not expanded."""
Row = dict[str, Any]
Answer = tuple[int, Any, dict[str, str]]


class Langfuse:
    """What the server has, and how it behaves. `requests`: the paths with their parameters, as they came."""

    def __init__(self) -> None:
        self.observations: list[Row] = []
        self.scores: list[Row] = []
        self.project = "p1"
        self.refusals: list[Answer] = []
        """Given first, one a request that is no listing of projects."""
        self.most_bytes = 5_000_000
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.uri = f"http://{':'.join(KEYS)}@langfuse"

    def respond(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.host != "langfuse":
            raise httpx2.ConnectError("refused")
        asked = dict(request.url.params.items())
        status, body, headers = self.answer(request.url.path, asked, request.headers.get("Authorization", ""))
        if status == 0:
            raise httpx2.RemoteProtocolError("it goes away in the middle of an answer")
        return httpx2.Response(status, headers=headers, text=body if isinstance(body, str) else json.dumps(body))

    def answer(self, path: str, asked: dict[str, str], authorization: str) -> Answer:
        self.requests.append((path, asked))
        if authorization != "Basic " + base64.b64encode(":".join(KEYS).encode()).decode():
            return 401, {"message": "Invalid credentials. Confirm that you've configured the correct host."}, {}
        if path == "/api/public/projects":
            return 200, {"data": [{"id": self.project, "name": "desk", "metadata": {}}]}, {}
        if self.refusals:
            return self.refusals.pop(0)
        match path.removeprefix("/api/public/"):
            case "v2/observations":
                rows = self._chosen(self.observations, asked, "startTime")
                expanded = asked.get("expandMetadata", "").split(",")
                names = {name for group in (asked.get("fields") or "core,basic").split(",") for name in GROUPS[group]}
                chosen = [{k: v for k, v in row.items() if k in names | {*GROUPS["core"]}} for row in rows]
                return self._by_cursor([_cut(row, expanded) for row in chosen], asked, 1000)
            case "v3/scores":
                rows = self._chosen(self.scores, asked, "timestamp")
                subject = "subject" in asked.get("fields", "")
                shown = [{k: v for k, v in row.items() if subject or k != "subject"} for row in rows]
                return self._by_cursor(shown, asked, 100)
            case _:
                return 404, {"message": "Not found"}, {}

    def _chosen(self, rows: list[Row], asked: dict[str, str], moment: str) -> list[Row]:
        """Of the time and type that are asked for, the newest first."""
        first, end = (asked.get(name.replace("X", moment[0].upper() + moment[1:])) for name in ("fromX", "toX"))
        chosen = [row for row in rows if asked.get("type") in (None, row.get("type"))]
        chosen = [row for row in chosen if asked.get("environment") in (None, row.get("environment"))]
        chosen = [row for row in chosen if first is None or _at(row[moment]) >= _at(first)]
        return sorted([row for row in chosen if end is None or _at(row[moment]) < _at(end)],
                      key=lambda row: row[moment], reverse=True)  # fmt: skip

    def _by_cursor(self, rows: list[Row], asked: dict[str, str], most: int) -> Answer:
        limit = int(asked.get("limit", 50))
        if limit > most:
            return 400, {"message": "Invalid request data", "error": [{"path": ["limit"]}]}, {}
        at = int(base64.urlsafe_b64decode(asked["cursor"])) if "cursor" in asked else 0
        cursor = base64.urlsafe_b64encode(str(at + limit).encode()).decode()
        meta = {} if at + limit >= len(rows) else {"cursor": cursor}
        return self._sized({"data": rows[at : at + limit], "meta": meta})

    def _sized(self, body: Any) -> Answer:
        return (200, body, {}) if len(json.dumps(body)) <= self.most_bytes else (413, {"message": "Too large"}, {})


def _at(moment: str) -> datetime:
    at = datetime.fromisoformat(moment)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _cut(row: Row, expanded: list[str]) -> Row:
    values = row.get("metadata", {})
    cut = {k: v if k in expanded or not isinstance(v, str) else v[:SHOWN] for k, v in values.items()}
    return {**row, "metadata": cut} if values else row


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Langfuse:
    result = Langfuse()
    client = partial(httpx2.Client, transport=httpx2.MockTransport(result.respond))
    monkeypatch.setattr(httpx2, "Client", client)
    return result


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that are made, which take no time."""
    pauses: list[float] = []
    monkeypatch.setattr(langfuse_api.time, "sleep", pauses.append)
    return pauses


def observation(number: int, day: date = DAY, **changes: Any) -> Row:
    moment = f"{day.isoformat()}T10:{number // 60 % 60:02d}:{number % 60:02d}.000Z"
    return {
        "id": f"o{number}", "traceId": f"t{number}", "type": "GENERATION", "name": "answer", "startTime": moment,
        "endTime": moment.replace(".000Z", ".750Z"), "updatedAt": moment, "projectId": "p1", "level": "DEFAULT",
        "environment": "production", "userId": f"u{number}", "sessionId": "s", "model": "m", "version": "v7",
        "release": "r1", "tags": ["a"], "latency": 0.75, "usageDetails": {"input": 7, "output": 3},
        "input": json.dumps([{"role": "user", "content": f"What is {number} + 1?"}]),
        "output": json.dumps({"role": "assistant", "content": f"{number + 1}"}),
        "metadata": {"user_consent": "true", "expected_answer": str(number + 1)}, **changes,
    }  # fmt: skip


def score(number: int, day: date = DAY, of: Row | None = None, **changes: Any) -> Row:
    moment = f"{day.isoformat()}T12:00:00.000Z"
    return {
        "id": f"s{number}", "name": "thumb", "value": 1, "dataType": "NUMERIC", "source": "API", "timestamp": moment,
        "updatedAt": moment, "subject": of or {"kind": "trace", "id": f"t{number}"}, **changes,
    }  # fmt: skip


def rows_of(store: Store, governed: GovernedTraces) -> list[dict[str, Any]]:
    return materialize.read(store, local_lake(store), governed.iteration.dataset).to_pylist()


def source(server: Langfuse, uri: str = "", **changes: Any) -> LangfuseApi:
    section = LangfuseApiSource.model_validate({"since": DAY, "until": DAY, **changes})
    return LangfuseApi(uri or server.uri, section)


def test_every_row_is_read_over_pages(server: Langfuse, store: Store) -> None:
    server.observations = [observation(n) for n in range(1203)] + [observation(2000, type="SPAN")]
    server.scores = [score(n) for n in range(205)] + [score(900, of={"kind": "session", "id": "s"})]
    rows = read(source(server))
    assert sorted(trace.trace_id for trace in rows.traces) == sorted(f"t{n}" for n in range(1203))
    assert len(rows.scores) == 205 and not rows.rejected
    section = LangfuseApiSource(since=DAY, until=DAY)
    governed = govern(store, section, server.uri, now=NOW)
    assert (governed.seen, governed.admitted, len(rows_of(store, governed))) == (1203, 1203, 1203)


def test_a_row_says_what_an_export_says(server: Langfuse, store: Store) -> None:
    server.observations = [observation(1)]
    of = {"kind": "observation", "id": "o1", "traceId": "t1"}
    server.scores = [score(1), score(2, of=of, value="down", dataType="CATEGORICAL"), score(3, of=of, value=True)]
    (trace,) = read(source(server)).traces
    assert (trace.model, trace.latency_s, trace.input_tokens, trace.output_tokens) == ("m", 0.75, 7, 3)
    assert trace.messages == [{"role": "user", "content": "What is 1 + 1?"}] and trace.completion == "2"
    assert trace.timestamp == datetime(2026, 1, 5, 10, 0, 1) and json.loads(trace.metadata)["version"] == "v7"
    values = {(s.id, s.trace_id, s.observation_id, s.word or s.value) for s in read(source(server)).scores}
    assert values == {("s1", "t1", None, 1.0), ("s2", "t1", "o1", "down"), ("s3", "t1", "o1", 1.0)}
    governed = govern(store, LangfuseApiSource(since=DAY, until=DAY), server.uri, now=NOW)
    (row,) = rows_of(store, governed)
    assert (row["user_id"], row["feedback_count"], row["reference"]) == ("u1", 3, "2")
    shown = json.loads(row["metadata"])
    assert (shown["release"], shown["tags"], shown["environment"]) == ("r1", ["a"], "production")


def test_only_what_is_asked_for_is_read_whole(server: Langfuse) -> None:
    long = {"user_consent": "true", "expected_answer": "x" * 300, "case": "y" * 300, "note": "z" * 300}
    server.observations = [observation(1, metadata=long), observation(2, environment="staging")]
    (trace,) = read(source(server, environments=["production"], whole_metadata=["expected_answer", "case"])).traces
    shown = json.loads(trace.metadata)
    assert [len(shown[key]) for key in ("expected_answer", "case", "note")] == [300, 300, 200]


def test_a_parts_digest_is_its_content(server: Langfuse, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest() -> str:
        reader = source(server)
        content = hashlib.sha256()
        all_of(reader.rows(reader.parts()[0], content))
        return content.hexdigest()

    server.observations = [observation(n) for n in range(30)]
    first = digest()
    server.observations = [dict(reversed(row.items())) for row in reversed(server.observations)]
    server.observations.insert(3, server.observations[2])  # that two pages have
    server.most_bytes = 6_000
    assert digest() == first, "neither order nor pages count, and a row that comes twice is one"
    server.observations[3]["output"] = "another"
    assert digest() != first


def test_rows_that_are_none_stop_nothing(server: Langfuse) -> None:
    bad: list[Any] = [observation(2, traceId=None), observation(3, usageDetails={"input": "many"}), observation(4)]
    server.observations = [observation(1), *bad]
    rows = read(source(server))
    assert sorted(trace.trace_id for trace in rows.traces) == ["t1", "t4"]
    assert sorted(reason.partition(":")[0] for reason in reasons(rows)) == ["schema", "schema"]


def test_the_server_says_how_long_to_wait(server: Langfuse, hasty: list[float]) -> None:
    server.observations = [observation(1)]
    parts = source(server).parts()
    server.refusals = [(429, {}, {"Retry-After": "17"}), (429, {}, {}), (503, {}, {"Retry-After": "2"})]
    assert len(read(source(server), parts[0]).traces) == 1
    assert hasty == [17.0, 1.0, 2.0]
    server.refusals = [(429, {"message": "rate limit exceeded"}, {"Retry-After": "86400"})]
    with pytest.raises(ValueError, match=r"asks to wait 86,400 s \(status 429\): no quota is left\. Run again then"):
        read(source(server), parts[0])


def test_pages_that_are_too_large_are_halved(server: Langfuse) -> None:
    server.observations = [observation(n, output="x" * 2_000) for n in range(120)]
    server.most_bytes = 60_000
    rows = read(source(server))
    assert sorted(trace.trace_id for trace in rows.traces) == sorted(f"t{n}" for n in range(120))


def test_a_server_that_goes_away_breaks_the_part_off(server: Langfuse, hasty: list[float]) -> None:
    server.observations = [observation(n) for n in range(700)]
    reader = source(server)
    part = reader.parts()[0]
    blocks = reader._pages  # pyright: ignore[reportPrivateUsage]

    def gone(*arguments: Any) -> Iterator[Any]:
        for page in blocks(*arguments):
            yield page
            server.refusals = [(0, "", {})] * langfuse_api.ATTEMPTS

    reader._pages = gone  # type: ignore[method-assign]
    rows = read(reader, part)
    assert len(rows.traces) == 500 and reasons(rows) == ["truncated_file:501:2026-01-05"]
    assert "does not answer /api/public/v2/observations" in rows.rejected[0].detail
    server.refusals = [(502, {}, {})] * langfuse_api.ATTEMPTS
    with pytest.raises(ValueError, match=r"does not answer .* \(status 502, 7 times\)\. Check LANGFUSE"):
        read(source(server), part)
    assert max(hasty) <= langfuse_api.LONGEST_PAUSE_S


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("http://pk-lf-1:wrong@langfuse", r"refuses the credentials \(401 for /api/public/projects\)\. Set LANGFUSE"),
        ("http://pk-lf-1:sk-lf-1@127.0.0.1:1", r"does not answer .*ConnectError.* Check LANGFUSE_BASE_URL"),
        ("http://pk-lf-1:sk-lf-1@langfuse/ui", r"refuses /api/public/projects \(404\)\. Set LANGFUSE_BASE_URL"),
    ],
)
def test_a_source_that_cannot_be_reached_is_told(server: Langfuse, uri: str, message: str) -> None:
    reader = source(server, uri)
    for ask in (reader.parts, reader.probe):
        with pytest.raises(ValueError, match=message) as refusal:
            ask()
        assert "sk-lf" not in str(refusal.value) and "wrong" not in str(refusal.value)
    assert "lf-1" not in reader.label and "lf-1" not in repr(reader)


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((403, {}, {}), r"refuses the credentials \(403"),
        ((400, {"message": "fields"}, {}), r"refuses /api/public/v2/observations \(400\)"),
        ((308, {}, {"Location": "https://eu"}), r"refuses /api/public/v2/observations \(308\)\. Set LANGFUSE"),
        ((200, "<html>", {}), r"answers /api/public/v2/observations with something else than a page of rows"),
        ((200, {"data": {}}, {}), r"something else than a page"),
    ],
)
def test_an_answer_that_is_no_page_is_told(server: Langfuse, refusal: Any, message: str) -> None:
    server.observations = [observation(1)]
    parts = source(server).parts()
    server.refusals = [refusal]
    with pytest.raises(ValueError, match=message):
        read(source(server), parts[0])


def test_a_settled_day_is_not_asked_for_again(server: Langfuse, store: Store) -> None:
    today = datetime.now(UTC).date()
    first, last = today - timedelta(days=5), today - timedelta(days=1)
    server.observations = [observation(1, first), observation(2, last)]
    section = LangfuseApiSource(since=first)
    now = datetime.now(UTC)

    def run() -> tuple[int, list[str]]:
        server.requests.clear()
        governed = govern(store, section, server.uri, now=now, window_days=30)
        days = {
            asked["fromStartTime"][:10]
            for path, asked in server.requests
            if path.endswith("v2/observations") and "toStartTime" in asked
        }
        return governed.admitted, sorted(days)

    days = [(first + timedelta(days=n)).isoformat() for n in range(6)]
    assert run() == (2, days)
    server.observations += [observation(3, last), observation(4, first)]
    assert run() == (3, days[2:]), "what comes for a settled day is not seen"
    server.scores = [score(1, last)]
    assert run() == (4, [days[0], *days[2:]]), "unless a score re-opens it"


def test_another_project_is_another_source(server: Langfuse) -> None:
    versions = [part.version for part in source(server).parts()]
    assert [part.version for part in source(server).parts()] == versions
    server.project = "p2"
    assert not {part.version for part in source(server).parts()} & set(versions)
    server.project = "p1"
    assert not {part.version for part in source(server, environments=["production"]).parts()} & set(versions)
