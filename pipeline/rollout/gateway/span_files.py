"""Reads what the gateway recorded within a window: the ends of the span files, whole lines only."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pipeline.rollout.gateway.spans import RECORDED_AT
from pipeline.traces.sources import chat, genai, otlp
from pipeline.traces.sources.otlp import Received

BLOCK = 1 << 20
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
    spans: list[Received]

    @property
    def marks(self) -> dict[str, Any]:
        """Attributes of its last try, `rollout.*` among them."""
        return self.tries[-1]

    @property
    def trace_id(self) -> str:
        return str(self.spans[0].record["traceId"])

    @property
    def failed(self) -> bool:
        """By intention to treat: a try that failed, or an answer that another arm gave."""
        arm = self.marks["rollout.arm"]
        return any("error.type" in each or each["rollout.served_by"] != arm for each in self.tries)

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
    with path.open("rb") as file:
        left, rest, last = file.seek(0, 2), b"", True
        while left:
            size = min(BLOCK, left)
            left -= size
            file.seek(left)
            pieces = (file.read(size) + rest).split(b"\n")
            if last:
                del pieces[-1]  # behind the last line break there is nothing, or half a line
                last = False
            rest, whole = (pieces[0], pieces[1:]) if left and pieces else (b"", pieces)
            yield from reversed(whole)
            first = next((at for text in whole if (at := written_at(text)) is not None), None)
            if first is not None and first < since - LATE_S:
                return


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
