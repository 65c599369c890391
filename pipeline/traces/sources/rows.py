"""Reader of logged calls in files, by the paths that the recipe or a preset names. Each file is a part."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, time
from functools import lru_cache
from typing import Any

import msgspec

from pipeline.core.storage import digest_json
from pipeline.recipe.sources import RowsSource
from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows, Score, Trace
from pipeline.traces.sources import chat
from pipeline.traces.sources.fields import (
    count,
    day_of,
    latency_s,
    metadata_of,
    metadata_text,
    put,
    said,
    seconds,
    utc,
)
from pipeline.traces.sources.files import Files
from pipeline.traces.sources.lines import refusal
from pipeline.traces.sources.parts import normal_tools
from pipeline.traces.sources.paths import first, last_key
from pipeline.traces.sources.protocol import Digest, SourcePart
from pipeline.traces.sources.shapes import NOTHING, decoded, list_of, object_of
from pipeline.traces.sources.tables import FORMATS, records

MODEL = "unknown"
"""Of a row that does not say who answered."""
FINE = frozenset({"success", "succeeded", "successful", "ok", "complete", "completed", "done", "finished", "true"})
"""Words of a status that is no error."""
SCORE_KEYS = (("name", "key", "metric"), ("value", "score", "rating"))
"""Of an object that is a score: its name, and its value."""
_NUMBER = re.compile(r"\s*-?\d+(\.\d+)?\s*")


class RowMapping:
    """What a row means."""

    def __init__(self, section: RowsSource) -> None:
        self._section, self.fields = section, section.mapping
        self.paths = tuple(dict.fromkeys(path for paths in self.fields.values() for path in paths))

    def value(self, row: Mapping[str, Any], field: str) -> Any:
        return first(row, self.fields.get(field, ()))

    def put(self, rows: Rows, row: Mapping[str, Any], line: int) -> None:
        """Put one row where it belongs."""
        try:
            trace = self._trace(row, line)
            scores = list(self._scores(row, trace)) if isinstance(trace, Trace) else []
        except (msgspec.ValidationError, RecursionError, OverflowError) as error:
            trace, scores = refusal(line, error, day=day_of(self.value(row, "time"))), []
        put(rows, trace)
        rows.scores.extend(scores)

    def _trace(self, row: Mapping[str, Any], line: int) -> Trace | Rejection:
        # An answer's id is not the row's: servers count theirs anew, and caches repeat them.
        id = _text(self.value(row, "id")) or f"row-{hashlib.sha256(_content(row)).hexdigest()[:32]}"
        dated, milliseconds = self.value(row, "time"), seconds(self.value(row, "latency_ms"))
        stated = self.value(row, "latency_s") if milliseconds is None else milliseconds / 1000
        trace = Trace(
            trace_id=_text(self.value(row, "trace")) or id,
            observation_id=id,
            timestamp=self._moment(dated),
            model=_text(self.value(row, "model")) or MODEL,
            user_id=_text(self.value(row, "user")),
            session_id=_text(self.value(row, "session")),
            messages=[],
            completion="",
            line=line,
            input_tokens=count(self.value(row, "input_tokens")),
            output_tokens=count(self.value(row, "output_tokens")),
            latency_s=latency_s(dated, self.value(row, "ended"), stated),
            finish_reason=_text(self.value(row, "finish_reason")),
            name=_text(self.value(row, "name")),
            metadata=metadata_text(self._metadata(row)),
        )
        asked, answered = chat.parse(self.value(row, "prompt"), "user"), chat.of_output(self.value(row, "completion"))
        if system := self.value(row, "system"):
            asked = chat.joined(chat.parse(system, "system"), asked)
        asked.tools = asked.tools or normal_tools(decoded(self.value(row, "tools")))
        return said(trace, asked, answered, failed=self._failed(row))

    def _moment(self, dated: Any) -> datetime:
        if dated is None and self._section.day is None:
            raise msgspec.ValidationError("no time: give fields.time, or day for rows without one")
        return datetime.combine(self._section.day, time()) if dated is None and self._section.day else utc(dated)

    def _failed(self, row: Mapping[str, Any]) -> bool:
        error, status = decoded(self.value(row, "error")), self.value(row, "status")
        return bool(error and str(error) not in NOTHING) or not (status is None or _is_fine(status))

    def _metadata(self, row: Mapping[str, Any]) -> dict[str, Any]:
        version, kept = self.value(row, "version"), dict[str, Any]()
        for path in self.fields.get("metadata", ()):
            value = first(row, (path,))
            if isinstance(decoded(value), dict):
                kept |= metadata_of(value)
            elif value is not None:
                kept[last_key(path)] = value
        kept |= {} if version is None else {"version": version}
        return kept | ({"licence": self._section.licence} if self._section.licence else {})

    def _scores(self, row: Mapping[str, Any], trace: Trace) -> Iterator[Score]:
        for path in self.fields.get("scores", ()):
            value = decoded(first(row, (path,)))
            named: list[tuple[str, Any]] = [] if value is None else [(last_key(path), value)]
            if isinstance(value, dict):
                one = _named_score(object_of(value))
                named = [one] if one else list(object_of(value).items())
            elif isinstance(value, list):
                named = [one for each in list_of(value) if (one := _named_score(object_of(each)))]
            for name, each in named:
                yield _score(trace, name, each)


class RowFiles:
    """A row's line is its line or its place in its file."""

    def __init__(self, uri: str, section: RowsSource) -> None:
        self.label = uri
        self._files, self._requests_uri, self._mapping = Files(uri), section.requests, RowMapping(section)

    def parts(self) -> list[SourcePart]:
        parts = self._files.parts(suffixes=FORMATS)
        if not parts:
            raise ValueError(f"{self.label} holds no {', '.join(FORMATS)}. Point traces.source.uri to the files.")
        if self._requests_uri is None:
            return parts
        asked = digest_json(_request_parts(self._requests_uri))[:16]
        return [part._replace(version=f"{part.version}-{asked}") for part in parts]

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        requests: Mapping[str, Mapping[str, Any]] | None = None
        if self._requests_uri is not None:
            version, _, asked = part.version.rpartition("-")
            part = part._replace(version=version)
            digest.update(asked.encode())
            fields, paths = self._mapping.fields, self._mapping.paths
            requests = _requests(self._requests_uri, _request_parts(self._requests_uri), paths, fields.get("key", ()))
        for batch in records(self._files, part, digest, self._mapping.paths):
            rows = Rows(rejected=batch.rejected)
            for line, record in batch.records:
                request = {} if requests is None else requests.get(str(self._mapping.value(record, "key")))
                if request is None:
                    rows.rejected.append(Rejection(line, Reason.NO_CONTENT, detail="no request has its key"))
                else:
                    self._mapping.put(rows, {**request, **record}, line)
            yield rows


def _request_parts(uri: str) -> tuple[SourcePart, ...]:
    return tuple(Files(uri).parts(suffixes=FORMATS))


@lru_cache(maxsize=1)
def _requests(
    uri: str, parts: tuple[SourcePart, ...], paths: tuple[str, ...], key: tuple[str, ...]
) -> dict[str, Mapping[str, Any]]:
    """The requests of all files by their key: they are held in memory, once in each process."""
    files, by_key = Files(uri), dict[str, Mapping[str, Any]]()
    for part in parts:
        for batch in records(files, part, hashlib.sha256(), paths):
            by_key |= {str(value): record for _, record in batch.records if (value := first(record, key)) is not None}
    return by_key


def _content(row: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(row, order="deterministic")


def _text(value: Any) -> str | None:
    """Raises msgspec.ValidationError for a structure."""
    if isinstance(value, dict | list):
        raise msgspec.ValidationError("a structure where an id or a name should be")
    return None if value is None or value == "" else str(value)


def _is_fine(status: Any) -> bool:
    word = str(status).strip().lower().removesuffix(".0")
    return word in FINE or (word.isdecimal() and 100 <= int(word) < 400)


def _named_score(value: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The name and the value of an object that is one score."""
    name, given = (next((value[key] for key in keys if key in value), None) for keys in SCORE_KEYS)
    return (str(name), given) if name is not None else None


def _score(trace: Trace, name: str, value: Any) -> Score:
    word = value if isinstance(value, str) else None
    is_number = isinstance(value, bool | int | float) or bool(word and _NUMBER.fullmatch(word))
    kind = "BOOLEAN" if isinstance(value, bool) else "NUMERIC" if is_number or word is None else "CATEGORICAL"
    number = float(value) if is_number else None
    id = f"{trace.observation_id}:{name}"
    return Score(id, trace.trace_id, trace.observation_id, name, number, "API", None, kind, word)
