"""Answers of Langfuse's public API as it documents them: keys, cursors, pages, fields, limits; of the newer API
(self-hosted 4, SDK 5.0.4) and of the older (SDK 3.15.0)."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import httpx2

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
        self.traces: list[Row] = []
        self.scores: list[Row] = []
        self.newest = True
        """Whether it has the newer API."""
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
            case "v2/observations" if self.newest:
                rows = self._chosen(self.observations, asked, "startTime")
                expanded = asked.get("expandMetadata", "").split(",")
                names = {name for group in (asked.get("fields") or "core,basic").split(",") for name in GROUPS[group]}
                chosen = [{k: v for k, v in row.items() if k in names | {*GROUPS["core"]}} for row in rows]
                return self._by_cursor([_cut(row, expanded) for row in chosen], asked, 1000)
            case "v3/scores" if self.newest:
                rows = self._chosen(self.scores, asked, "timestamp")
                subject = "subject" in asked.get("fields", "")
                shown = [{k: v for k, v in row.items() if subject or k != "subject"} for row in rows]
                return self._by_cursor(shown, asked, 100)
            case "observations" if not self.newest:
                hidden = ("userId", "sessionId", "tags", "release")
                rows = self._chosen(self.observations, asked, "startTime")
                return self._by_number([{k: v for k, v in row.items() if k not in hidden} for row in rows], asked)
            case "traces" if not self.newest:
                return self._by_number(self._chosen(self.traces, asked, "timestamp"), asked)
            case "v2/scores":
                return self._by_number([_flat(row) for row in self._chosen(self.scores, asked, "timestamp")], asked)
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

    def _by_number(self, rows: list[Row], asked: dict[str, str]) -> Answer:
        limit, page = int(asked.get("limit", 50)), int(asked.get("page", 1))
        if limit > 100:
            return 400, {"message": "Invalid request data", "error": [{"path": ["limit"]}]}, {}
        pages = -(-len(rows) // limit)
        meta = {"page": page, "limit": limit, "totalItems": len(rows), "totalPages": pages}
        return self._sized({"data": rows[(page - 1) * limit : page * limit], "meta": meta})

    def _sized(self, body: Any) -> Answer:
        return (200, body, {}) if len(json.dumps(body)) <= self.most_bytes else (413, {"message": "Too large"}, {})


def _at(moment: str) -> datetime:
    at = datetime.fromisoformat(moment)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _cut(row: Row, expanded: list[str]) -> Row:
    values = row.get("metadata", {})
    cut = {k: v if k in expanded or not isinstance(v, str) else v[:SHOWN] for k, v in values.items()}
    return {**row, "metadata": cut} if values else row


def _flat(row: Row) -> Row:
    """A score as the older API has it."""
    subject = row["subject"]
    of = subject["kind"] == "observation"
    trace = subject["traceId"] if of else subject["id"] if subject["kind"] == "trace" else None
    rest = {key: value for key, value in row.items() if key != "subject"}
    return {**rest, "traceId": trace, "observationId": subject["id"] if of else None}
