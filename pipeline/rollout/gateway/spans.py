"""What was served, as OpenTelemetry GenAI spans: one OTLP JSON export request a line, with a span for each try, written
and read back. Readers of OTLP skip the other fields: a look finds its window by `recorded_at`, an erasure its lines by
user and trace."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pipeline.core import layout
from pipeline.core.storage import Store, append
from pipeline.rollout.gateway.asked import CallerRequest
from pipeline.rollout.gateway.dialects import SlotReply, reply_of
from pipeline.rollout.router import Arm
from pipeline.traces.sources import chat, genai, otlp

RECORDED_AT = "recorded_at"
"""First key of a line: seconds since 1970 when it was written, ascending within a file."""
_RESERVED = (
    *("gen_ai.", "llm.", "ai.", "input.", "output.", "openinference.", "events"),
    *("rollout.", "model.", "user.", "enduser.", "session.", "error.", "service."),
)
"""Beginnings of attributes that no caller's metadata may set."""


class Try(msgspec.Struct):
    """One slot's turn at a request. `raw`: the answer's body, or the pieces of a stream. Times in ns since 1970."""

    served_by: str
    digest: str
    model: str
    start: int
    end: int = 0
    raw: list[bytes] = []
    error: str = ""
    message: str = ""
    aborted: bool = False
    """The caller hung up within the answer: no error of the arm, and no whole answer."""

    def ended(self, raw: Sequence[bytes] = (), error: str = "", message: str = "", aborted: bool = False) -> Try:
        self.end, self.raw, self.error, self.aborted = time.time_ns(), list(raw), error, aborted
        self.message = message or error
        return self


class Served(msgspec.Struct):
    """One request and who tried to answer it. `weight`: percent on the canary at that moment."""

    asked: CallerRequest
    trace_id: str
    unit: str
    unit_kind: str
    arm: str = "champion"
    rollout: str = ""
    epoch: int = 0
    weight: int = 0
    tries: list[Try] = []

    def refused(self, why: str) -> None:
        """By the gateway itself: of no model, no arm and no rollout."""
        self.arm, self.rollout, self.epoch, self.weight = "", "", 0, 0
        self.tries.append(Try("", "", "", time.time_ns()).ended(error="gateway", message=why))


def unit_hash(rollout: str, unit: str) -> str:
    """A unit as evidence knows it: salted by the rollout, so that users cannot be followed from one to the next."""
    return hashlib.sha256(f"{rollout}/{unit}".encode()).hexdigest()[:32]


def line(served: Served, with_text: bool, now: float) -> bytes:
    """The line of a request. `now`: seconds since 1970, when it is written. `with_text`: whether it holds the texts,
    the user and the metadata."""
    texts = served.asked.texts() if with_text else None
    spans = [_span(served, number, texts) for number in range(len(served.tries))]
    export: dict[str, Any] = {"resourceSpans": [{"resource": _RESOURCE, "scopeSpans": [{"spans": spans}]}]}
    named = {"user_id": served.asked.user} if with_text and served.asked.user else {}
    moment = datetime.fromtimestamp(served.tries[0].start / 1e9, UTC).isoformat()
    return _ENCODE({RECORDED_AT: now, **named, "trace_id": served.trace_id, "timestamp": moment, **export}) + b"\n"


def _span(served: Served, number: int, texts: dict[str, str] | None) -> dict[str, Any]:
    tried, asked = served.tries[number], served.asked
    reply = reply_of(asked.dialect, tried.raw) if tried.raw else SlotReply()
    finish = reply.finish_reason or ("aborted" if tried.aborted else "")
    error = tried.error or ("error_in_stream" if reply.error else "")
    attributes: dict[str, Any] = {
        "rollout.id": served.rollout,
        "rollout.arm": served.arm or None,
        "rollout.served_by": tried.served_by or None,
        "rollout.epoch": served.epoch,
        "rollout.weight": served.weight,
        "rollout.unit": unit_hash(served.rollout, served.unit),
        "rollout.unit_kind": served.unit_kind,
        "rollout.aborted": tried.aborted or None,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": asked.text("model") or None,
        "gen_ai.response.model": tried.model or None,
        "gen_ai.response.id": reply.id or None,
        "gen_ai.response.finish_reasons": [finish] if finish else None,
        "gen_ai.usage.input_tokens": reply.input_tokens,
        "gen_ai.usage.output_tokens": reply.output_tokens,
        "model.digest": tried.digest or None,
        "error.type": error or None,
    }
    if texts is not None:  # of a failed try too: it is an earlier call for the same message
        attributes |= texts
        if tried is served.tries[-1] and not tried.error and reply.turns:
            reply.turns[-1]["finish_reason"] = finish
            attributes["gen_ai.output.messages"] = _ENCODE(reply.turns).decode()
            attributes |= {f"gen_ai.{name}": _ENCODE(values).decode() for name, values in reply.tokens.items()}
        own = {key: value for key, value in asked.metadata.items() if key != "user_id"}
        attributes |= {f"metadata.{key}" if key.startswith(_RESERVED) else key: own[key] for key in own}
        attributes |= {"user.id": asked.user or None, "session.id": asked.session or None}
    return {
        "traceId": served.trace_id,
        "spanId": hashlib.sha256(f"{served.trace_id}/{number}".encode()).hexdigest()[:16],
        "name": f"chat {tried.model}".strip(),
        "kind": 3,
        "startTimeUnixNano": str(tried.start),
        "endTimeUnixNano": str(tried.end),
        "attributes": otlp_attributes(attributes.items()),
        "status": {"code": 2, "message": tried.message or error} if error else {"code": 1},
    }


def otlp_attributes(pairs: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Without those that are None."""
    # most values are text, and a call for each would be a quarter of what a line costs
    return [
        {"key": key, "value": {"stringValue": value} if type(value) is str else _value(value)}
        for key, value in pairs
        if value is not None
    ]


def _value(value: Any) -> dict[str, Any]:
    """A typed value of OTLP; its integers are text."""
    match value:
        case str():
            return {"stringValue": value}
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(item) for item in value]}}
        case _:
            return {"stringValue": msgspec.json.encode(value).decode()}


_RESOURCE = {"attributes": otlp_attributes([("service.name", "gateway")])}
_ENCODE = msgspec.json.Encoder().encode

FLUSH_S, RETRY_S = 0.05, 1.0
"""Between two writes, and after one that failed."""
MOST_WAITING, BATCH = 100_000, 500
"""Requests that wait for a disk, beside those under way: more are refused. And those of one write."""
_log = logging.getLogger("uvicorn.error")


class Recorder:
    """Writes what was served, in a thread. `recorded`: how many requests are in a file. `fault`: why some had to wait,
    the last time that they had to."""

    def __init__(self, store: Store, model_name: str, with_text: bool) -> None:
        self._served, self._with_text = store.path(layout.served(model_name)), with_text
        self.waiting: deque[Served] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="recorder", daemon=True)
        self.recorded, self.fault = 0, ""

    def start(self) -> None:
        self._thread.start()

    def add(self, served: Served) -> None:
        if served.tries[-1].served_by or len(self.waiting) < MOST_WAITING:  # what is refused for that is not kept
            self.waiting.append(served)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _write_all(self) -> None:
        over, pause = False, FLUSH_S
        while not over:
            over, pause = self._closing.wait(pause), FLUSH_S
            try:
                for _ in range(0, len(self.waiting), BATCH):
                    self._append()
            except OSError as error:
                self.fault, pause = str(error), RETRY_S
                _log.error("%d requests wait to be recorded: %s", len(self.waiting), error)

    def _append(self) -> None:
        """Write those that wait longest. Raises OSError where the disk does not take them, and they wait on."""
        now, lines = time.time(), list[bytes]()
        batch = [self.waiting[place] for place in range(min(BATCH, len(self.waiting)))]
        for served in batch:
            try:
                lines.append(line(served, self._with_text, now))
            except Exception:  # the boundary of one request: whatever it holds, the others are recorded
                _log.exception("A request could not be recorded")
        day = datetime.fromtimestamp(now, UTC).date().isoformat()
        append(self._served / f"{day}-{os.getpid()}.jsonl", b"".join(lines))
        self.recorded += len(lines)
        for _ in batch:
            self.waiting.popleft()


LATE_S = 60.0
"""Lines ascend in time, but for a clock that is set: the search goes on for so much further back."""
_KEY = b'{"' + RECORDED_AT.encode() + b'":'


class RecordedExport(otlp.ExportRequest, kw_only=True):
    recorded_at: float = msgspec.field(name=RECORDED_AT)


class RecordedRequest(NamedTuple):
    """One request of the files: the attributes of its tries, in order."""

    at: float
    latency_s: float
    """From its first try to the end of its last."""
    tries: list[dict[str, Any]]
    spans: list[otlp.Received]

    @property
    def marks(self) -> dict[str, Any]:
        """Attributes of its last try, `rollout.*` among them."""
        return self.tries[-1]

    @property
    def trace_id(self) -> str:
        return str(self.spans[0].record["traceId"])

    @property
    def arm(self) -> Arm:
        """That it was sent to."""
        return self.marks["rollout.arm"]

    @property
    def unit(self) -> str:
        return self.marks["rollout.unit"]

    @property
    def failed(self) -> bool:
        """By intention to treat: a try that failed, or an answer that another arm gave."""
        return any("error.type" in each or each["rollout.served_by"] != self.arm for each in self.tries)

    def texts(self) -> tuple[list[Any], str]:
        """Messages and answer, as the traces' source reads them; both empty where no text was recorded."""
        asked, answered = genai.asked(self.marks, []), genai.answered(self.marks, [])
        return list(asked.messages), chat.completion(answered)


def recorded(folder: Path, since: float, until: float) -> list[RecordedRequest]:
    """What was written after `since` and until `until`, in that order. A line that can't be read is skipped."""
    requests: list[RecordedRequest] = []
    for path in sorted(folder.glob("*.jsonl")):
        if path.stat().st_mtime < since - LATE_S:
            continue
        for text in lines_from_the_end(path, since):
            at = written_at(text)
            if at is not None and since < at <= until and (request := _request(text)) is not None:
                requests.append(request)
    return sorted(requests, key=lambda request: request.at)


def lines_from_the_end(path: Path, since: float) -> Iterator[bytes]:
    """Whole lines from the file's end backwards, until they are older than `since`."""
    if not path.stat().st_size:  # which cannot be mapped
        return
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as whole:
        end = whole.rfind(b"\n")  # what follows it is half a line
        while end >= 0:
            before = whole.rfind(b"\n", 0, end)
            text = whole[before + 1 : end]
            yield text
            if (at := written_at(text)) is not None and at < since - LATE_S:
                return
            end = before


def written_at(text: bytes) -> float | None:
    """When a line was written, in seconds since 1970; None for one that is none of the recorder's."""
    if not text.startswith(_KEY):
        return None
    try:
        return float(text[len(_KEY) : text.index(b",")])
    except ValueError:
        return None


def _request(text: bytes) -> RecordedRequest | None:
    try:
        export = _DECODE(text)
        spans = [each for each in otlp.records(export) if not each.is_log]
        whole = [msgspec.convert(each.record, otlp.Span) for each in spans]
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if not whole:
        return None
    latency_s = (int(whole[-1].end_time_unix_nano) - int(whole[0].start_time_unix_nano)) / 1e9
    tries = [otlp.attributes(span.attributes) for span in whole]
    return RecordedRequest(export.recorded_at, max(0.0, latency_s), tries, spans)


_DECODE = msgspec.json.Decoder(RecordedExport).decode
