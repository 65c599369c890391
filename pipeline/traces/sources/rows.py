"""Reader of logged calls in files, by the paths that the recipe or a preset names. Each file is a part."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, time
from functools import cached_property
from typing import Any, cast

import msgspec

from pipeline.core.storage import digest_json
from pipeline.recipe.sources import RowsSource
from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows, Score, Trace
from pipeline.traces.sources import chat
from pipeline.traces.sources.fields import count, latency_s, metadata_of, metadata_text, put, said, seconds, utc
from pipeline.traces.sources.files import Files
from pipeline.traces.sources.lines import refusal
from pipeline.traces.sources.parts import normal_tools
from pipeline.traces.sources.paths import first, last_key
from pipeline.traces.sources.protocol import Digest, SourcePart
from pipeline.traces.sources.shapes import decoded, list_of, object_of
from pipeline.traces.sources.tables import FORMATS, records

MODEL = "unknown"
"""Of a row that does not say who answered."""
FINE = frozenset({"success", "succeeded", "successful", "ok", "complete", "completed", "done", "finished"})
"""Words of a status that is no error."""
SCORE_KEYS = (("name", "key", "metric"), ("value", "score", "rating"))
"""Of an object that is a score: its name, and its value."""


class RowMapping:
    """What a row means."""

    def __init__(self, section: RowsSource) -> None:
        self._section, self._paths = section, section.mapping
        self.paths = tuple(dict.fromkeys(path for paths in self._paths.values() for path in paths))

    def value(self, row: Mapping[str, Any], field: str) -> Any:
        return first(row, self._paths.get(field, ()))

    def put(self, rows: Rows, row: Mapping[str, Any], name: str, line: int) -> None:
        """Put one row where it belongs. `name`: of a row without an id, beside its line."""
        try:
            trace = self._trace(row, name, line)
        except (msgspec.ValidationError, RecursionError, TypeError) as error:
            trace = refusal(line, error)
        put(rows, trace)
        if isinstance(trace, Trace):
            rows.scores.extend(self._scores(row, trace))

    def _trace(self, row: Mapping[str, Any], name: str, line: int) -> Trace | Rejection:
        given = self.value(row, "id")
        content = hashlib.sha256(json.dumps(row, default=str, sort_keys=True).encode()).hexdigest()
        dated, ended = self.value(row, "time"), self.value(row, "ended")
        if dated is None and self._section.day is None:
            return Rejection(line, Reason.SCHEMA, detail="no time: give fields.time, or day for rows without one")
        moment = datetime.combine(self._section.day, time(), UTC) if dated is None else utc(dated)  # type: ignore[arg-type]
        milliseconds = seconds(self.value(row, "latency_ms"))
        trace = Trace(
            trace_id=str(self.value(row, "trace") or given or f"row-{content[:32]}"),
            observation_id=str(given or f"{name}:{line}"),
            timestamp=moment,
            model=str(self.value(row, "model") or MODEL),
            user_id=_text(self.value(row, "user")),
            session_id=_text(self.value(row, "session")),
            messages=[],
            completion="",
            line=line,
            input_tokens=count(self.value(row, "input_tokens")),
            output_tokens=count(self.value(row, "output_tokens")),
            latency_s=milliseconds / 1000 if milliseconds is not None else latency_s(dated, ended, self.value(row, "latency_s")),
            finish_reason=_text(self.value(row, "finish_reason")),
            name=_text(self.value(row, "name")),
            metadata=metadata_text(self._metadata(row)),
        )
        asked, answered = chat.parse(self.value(row, "prompt"), "user"), chat.of_output(self.value(row, "completion"))
        if system := self.value(row, "system"):
            asked = chat.joined(chat.parse(system, "system"), asked)
        asked.tools = asked.tools or normal_tools(decoded(self.value(row, "tools")))
        return said(trace, asked, answered, failed=self._failed(row))

    def _failed(self, row: Mapping[str, Any]) -> bool:
        status = self.value(row, "status")
        if isinstance(status, str) and not status.isdigit():
            return status.lower() not in FINE
        return bool(self.value(row, "error")) or int(status or 200) >= 400

    def _metadata(self, row: Mapping[str, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = {"version": version} if (version := self.value(row, "version")) else {}
        for path in self._paths.get("metadata", ()):
            value = first(row, (path,))
            kept |= metadata_of(value) if isinstance(decoded(value), dict) else {last_key(path): value}
        return {**kept, "licence": self._section.licence} if self._section.licence else kept

    def _scores(self, row: Mapping[str, Any], trace: Trace) -> Iterator[Score]:
        for path in self._paths.get("scores", ()):
            value = decoded(first(row, (path,)))
            if isinstance(value, dict) and (one := _score_of(object_of(value))):
                named = [one]
            elif isinstance(value, dict):
                named = list(object_of(value).items())
            elif isinstance(value, list):
                named = [one for each in list_of(value) if (one := _score_of(object_of(each)))]
            else:
                named = [] if value is None else [(last_key(path), value)]
            for name, each in named:
                id = f"{trace.observation_id}:{name}"
                yield _score(id, trace, name, each)


class RowFiles:
    def __init__(self, uri: str, section: RowsSource) -> None:
        self.label = uri
        self._files, self._section, self._mapping = Files(uri), section, RowMapping(section)
        self._request_files = Files(section.requests) if section.requests else None

    def parts(self) -> list[SourcePart]:
        parts = self._files.parts(suffixes=FORMATS)
        if not parts:
            raise ValueError(f"{self.label} holds no {', '.join(FORMATS)}. Point traces.source.uri to the files.")
        if self._request_files is None:
            return parts
        asked = digest_json(self._request_files.parts(suffixes=FORMATS))[:16]
        return [part._replace(version=f"{part.version}-{asked}") for part in parts]

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        if self._request_files is not None:
            part = part._replace(version=part.version.rpartition("-")[0])
        for batch in records(self._files, part, digest, self._mapping.paths):
            rows = Rows(rejected=batch.rejected)
            for line, record in batch.records:
                if self._request_files is not None:
                    request = self._requests.get(str(self._mapping.value(record, "key")))
                    if request is None:
                        detail = "no request has its key"
                        rows.rejected.append(Rejection(line, Reason.NO_CONTENT, detail=detail))
                        continue
                    record = {**request, **record}
                self._mapping.put(rows, record, part.name, line)
            yield rows

    @cached_property
    def _requests(self) -> dict[str, Mapping[str, Any]]:
        """Of all files, by key: they are held in memory."""
        assert self._request_files is not None
        found: dict[str, Mapping[str, Any]] = {}
        for part in self._request_files.parts(suffixes=FORMATS):
            for batch in records(self._request_files, part, hashlib.sha256(), self._mapping.paths):
                found |= {str(self._mapping.value(record, "key")): record for _, record in batch.records}
        return found


def _text(value: Any) -> str | None:
    return None if value in (None, "") else str(value)


def _score_of(value: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The name and the value of an object that is one score."""
    name, given = (next((value[key] for key in keys if key in value), None) for keys in SCORE_KEYS)
    return (str(name), given) if name is not None else None


def _score(id: str, trace: Trace, name: str, value: Any) -> Score:
    number = float(cast(float, value)) if isinstance(value, bool | int | float) else None
    kind = "BOOLEAN" if isinstance(value, bool) else "CATEGORICAL" if isinstance(value, str) else "NUMERIC"
    word = value if isinstance(value, str) else None
    return Score(id, trace.trace_id, trace.observation_id, name, number, "API", None, kind, word)
