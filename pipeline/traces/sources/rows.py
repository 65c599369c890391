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
from pipeline.traces.sources import chat, fields
from pipeline.traces.sources.files import Files
from pipeline.traces.sources.lines import refusal
from pipeline.traces.sources.protocol import Digest, SourcePart
from pipeline.traces.sources.shapes import NOTHING, decoded, first, last_key, list_of, names, object_of
from pipeline.traces.sources.tables import FORMATS, bundled, records

MODEL = "unknown"
"""Of a row that does not say who answered."""
FINE = frozenset(names("fine"))
"""Words of a status that is no error."""
SCORE_KEYS = (("name", "key", "metric"), ("value", "score", "rating"))
"""Of an object that is a score: its name, and its value."""
_NUMBER = re.compile(r"\s*-?\d+(\.\d+)?\s*")
Requests = Mapping[str, Mapping[str, Any] | None]
"""By key; None where several have it."""


class RowMapping:
    """What a row means."""

    def __init__(self, section: RowsSource) -> None:
        self._section, self.mapping = section, section.mapping
        self._filters = {path: re.compile(pattern, re.IGNORECASE) for path, pattern in section.filters.items()}
        named = (*self._filters, *(path for paths in self.mapping.values() for path in paths))
        self.paths = tuple(dict.fromkeys(named))

    def value(self, row: Mapping[str, Any], field: str) -> Any:
        return first(row, self.mapping.get(field, ()))

    def put(self, rows: Rows, row: Mapping[str, Any], line: int) -> None:
        """Put one row where it belongs."""
        try:
            trace = self._trace(row, line)
            scores = list(self._scores(row, trace)) if isinstance(trace, Trace) else []
        except (msgspec.ValidationError, RecursionError, OverflowError) as error:
            trace, scores = refusal(line, error, day=fields.day_of(self.value(row, "time"))), []
        fields.put(rows, trace)
        rows.scores.extend(scores)

    def _trace(self, row: Mapping[str, Any], line: int) -> Trace | Rejection:
        for path, pattern in self._filters.items():
            if not pattern.search(str(first(row, (path,)) or "")):
                return Rejection(line, Reason.NOT_GENERATION, detail=f"{path} is not {pattern.pattern}")
        # An answer's id is not the row's: servers count theirs anew, and caches repeat them.
        id = _text(self.value(row, "id")) or f"row-{_digest(row)}"
        dated, milliseconds = self.value(row, "time"), fields.seconds(self.value(row, "latency_ms"))
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
            input_tokens=fields.count(self.value(row, "input_tokens")),
            output_tokens=fields.count(self.value(row, "output_tokens")),
            latency_s=fields.latency_s(dated, self.value(row, "ended"), stated),
            finish_reason=_text(self.value(row, "finish_reason")),
            name=_text(self.value(row, "name")),
            metadata=fields.metadata_text(self._metadata(row)),
        )
        asked = chat.request(*(self.value(row, name) for name in ("prompt", "system", "tools")))
        return fields.said(trace, asked, chat.of_output(self.value(row, "completion")), failed=self._failed(row))

    def _moment(self, dated: Any) -> datetime:
        if dated is not None:
            return fields.utc(dated)
        if self._section.day is None:
            raise msgspec.ValidationError("no time: give fields.time, or day for rows without one")
        return datetime.combine(self._section.day, time())

    def _failed(self, row: Mapping[str, Any]) -> bool:
        error, status = decoded(self.value(row, "error")), self.value(row, "status")
        return bool(error and str(error) not in NOTHING) or not (status is None or _is_fine(status))

    def _metadata(self, row: Mapping[str, Any]) -> dict[str, Any]:
        kept = dict[str, Any]()
        for path in self.mapping.get("metadata", ()):
            value = first(row, (path,))
            if isinstance(decoded(value), dict):
                kept |= fields.metadata_of(value)
            elif value is not None:
                kept[last_key(path)] = value
        marks = {"version": self.value(row, "version"), "licence": self._section.licence}
        return kept | {name: value for name, value in marks.items() if value is not None}

    def _scores(self, row: Mapping[str, Any], trace: Trace) -> Iterator[Score]:
        for path in self.mapping.get("scores", ()):
            value = decoded(first(row, (path,)))
            named: list[tuple[str, Any]] = [] if value is None else [(last_key(path), value)]
            if isinstance(value, dict):
                one = _named_score(object_of(value))
                named = [one] if one else list(object_of(value).items())
            elif isinstance(value, list):
                named = [one for each in list_of(value) if (one := _named_score(object_of(each)))]
            for name, each in named:
                yield _score(trace, name, object_of(each).get("value") if isinstance(each, dict) else each)


class RowFiles:
    """A row's line is its line or its place in its file, or in a part of small files the place of that."""

    def __init__(self, uri: str, section: RowsSource) -> None:
        self.label = uri
        self._files, self._requests, self._mapping = Files(uri), section.requests, RowMapping(section)

    def parts(self) -> list[SourcePart]:
        parts = bundled(self._files.parts(suffixes=FORMATS))
        if not parts:
            raise ValueError(f"{self.label} holds no {', '.join(FORMATS)}. Point traces.source.uri to the files.")
        if self._requests is None:
            return parts
        asked = digest_json(_request_parts(self._requests))[:16]
        return [part._replace(version=f"{part.version}-{asked}") for part in parts]

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        requests: Requests | None = None
        if self._requests is not None:
            version, _, asked = part.version.rpartition("-")
            part = part._replace(version=version)
            digest.update(asked.encode())
            parts, key = _request_parts(self._requests), self._mapping.mapping.get("key", ())
            requests = _requests(self._requests, parts, self._mapping.paths, key)
        for batch in records(self._files, part, digest, self._mapping.paths):
            rows = Rows(rejected=batch.rejected)
            for line, record in batch.records:
                if requests is None:
                    self._mapping.put(rows, record, line)
                elif request := requests.get(key := str(self._mapping.value(record, "key"))):
                    self._mapping.put(rows, {**request, **record}, line)
                else:
                    detail = f"{'several requests have' if key in requests else 'no request has'} its key"
                    rows.rejected.append(Rejection(line, Reason.NO_CONTENT, detail=detail))
            yield rows


def _request_parts(uri: str) -> tuple[SourcePart, ...]:
    return tuple(Files(uri).parts(suffixes=FORMATS))


@lru_cache(maxsize=1)
def _requests(uri: str, parts: tuple[SourcePart, ...], paths: tuple[str, ...], key: tuple[str, ...]) -> Requests:
    """The requests of all files, held in memory once in each process."""
    files, by_key = Files(uri), dict[str, Mapping[str, Any] | None]()
    for part in parts:
        for batch in records(files, part, hashlib.sha256(), paths):
            for _, record in batch.records:
                if (value := first(record, key)) is not None:
                    known = by_key.setdefault(str(value), record)
                    by_key[str(value)] = record if known == record else None
    return by_key


def _digest(row: Mapping[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(row, order="deterministic")).hexdigest()[:32]


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
