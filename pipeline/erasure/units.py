"""Whose a record is: one line, element, row, span or log record of a source in any of its formats.

Owns the names under which sources say the user, the trace and the time. A record that names its user is that user's;
one that names none (a score, an attribute, a span below another) is whose trace it is about. Where a person is named
in what is somebody else's, the record stays and the name goes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, cast

from pipeline.erasure.identifiers import Identifiers, leaves, mapped
from pipeline.traces.sources import conventions, mlflow_traces, openai_logs

OWNERS = frozenset({"user_id", "userId", "end_user", mlflow_traces.USER, *openai_logs.USERS, *conventions.USERS})
"""Names under which a record says whose it is."""
ROWS = frozenset({"id", "trace_id", "traceId", "observation_id", "observationId", "span_id", "spanId", "request_id"})
"""Names under which a record says which trace or call it is, or is about."""
_TIMES = ("start_time", "startTime", "timestamp", "created_at", "createdAt", "created", "recorded_at")
_NANOSECONDS = ("startTimeUnixNano", "timeUnixNano", "observedTimeUnixNano")
_INNER = ("trace", "observations", "request", "response", "body")
"""Where a record of a whole trace, or of a request and its response, keeps further ids."""
_GROUPS = {"resourceSpans": ("scopeSpans", "spans"), "resourceLogs": ("scopeLogs", "logRecords")}
Json = dict[str, Any]


class Whose(StrEnum):
    THEIRS = "theirs"
    NAMES_THEM = "names them"
    """Somebody else's, or nobody's, with an identifier in it."""
    OTHER = "other"


class RecordTest:
    """Tells whose a record is. `since`: only records from then on are the person's, and names of them stay."""

    def __init__(self, identifiers: Identifiers, since: datetime | None) -> None:
        self.identifiers, self._since = identifiers, since

    def whose(self, record: Any, around: Iterable[tuple[str, str]] = ()) -> Whose:
        """`around`: what the resource of a span says."""
        identifiers = self.identifiers
        named = list(leaves(record, numbered=OWNERS))
        owners = [value for key, value in (*named, *around) if key in OWNERS and value]
        if any(map(identifiers.is_user, owners)):
            return Whose.THEIRS if self._counts(record) else Whose.OTHER
        if not owners:
            if any(key in ROWS and identifiers.is_row(value) for key, value in named):
                return Whose.THEIRS
            if any(identifiers.is_user(value) for _, value in named):
                return Whose.THEIRS if self._counts(record) else Whose.OTHER
        return Whose.NAMES_THEM if self.names(record) else Whose.OTHER

    def names(self, record: Any) -> bool:
        """Whether an identifier stands in a record that stays, and is to go."""
        return self._since is None and any(self.identifiers.in_text(value) for _, value in leaves(record))

    def redacted(self, record: Any) -> Any:
        return mapped(record, self.identifiers.redacted)

    def _counts(self, record: Any) -> bool:
        """Whether a record of theirs is from `since` on; one without a readable time is."""
        return self._since is None or not isinstance(record, dict) or moment_of(cast(Json, record)) >= self._since


def owners(record: Any, around: Iterable[tuple[str, str]] = ()) -> Iterator[str]:
    """The ids of users that a record, and what stands around it, says it is of."""
    yield from (value for key, value in (*leaves(record, numbered=OWNERS), *around) if key in OWNERS and value)


def rows_named(record: Any) -> set[str]:
    """The ids of traces and calls that a record says it is: its own, not what stands in its texts."""
    if isinstance(record, list):
        return {row for each in cast(list[Any], record) for row in rows_named(each)}
    if not isinstance(record, dict):
        return set()
    fields = cast(Json, record)
    inner = {row for key in _INNER for row in rows_named(fields.get(key))}
    return inner | {value for key, value in fields.items() if key in ROWS and isinstance(value, str) and value}


def moment_of(record: Json) -> datetime:
    for name in _NANOSECONDS:
        try:
            if moment := int(record.get(name) or 0):
                return datetime.fromtimestamp(moment / 1e9, UTC)
        except (ValueError, OverflowError, OSError):
            break
    said = next((record[name] for name in _TIMES if record.get(name)), None)
    try:
        if isinstance(said, (int, float)):
            return datetime.fromtimestamp(said, UTC)
        moment = said if isinstance(said, datetime) else datetime.fromisoformat(str(said))
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def is_request(value: Any) -> bool:
    """Whether a value is an export request of OTLP, which holds records of several people."""
    return isinstance(value, dict) and any(isinstance(cast(Json, value).get(key), list) for key in _GROUPS)


def has_several(value: Any) -> bool:
    """Whether a value is no record but a list of records, or holds such lists, of several people: an export in one
    document. One that says its own user is that user's, whoever is named below."""
    return len(set(owners(value))) > 1 and not any(owners(_without_records(value)))


def _is_list_of_records(value: Any) -> bool:
    """Whether it is a list of what has an id of its own and is no message of a conversation."""
    items = cast(list[Any], value) if isinstance(value, list) else []
    return bool(items) and all(
        isinstance(each, dict) and not ROWS.isdisjoint(cast(Json, each)) and "role" not in each for each in items
    )


def _without_records(value: Any) -> Any:
    if _is_list_of_records(value):
        return []
    if isinstance(value, dict):
        return {key: _without_records(inner) for key, inner in cast(Json, value).items()}
    return value


def records_of(value: Any) -> Iterator[tuple[Any, list[tuple[str, str]]]]:
    """The records in a line's value, each with what stands around it."""
    if not is_request(value):
        if not has_several(value):
            yield value, []
        elif _is_list_of_records(value):
            yield from ((record, []) for each in value for record, _ in records_of(each))
        else:
            yield from ((record, []) for each in value.values() for record, _ in records_of(each))
        return
    beside = [(key, text) for key, text in leaves({k: v for k, v in value.items() if k not in _GROUPS})]
    for key, (scopes, records) in _GROUPS.items():
        for group in _dicts(value.get(key)):
            around = [*beside, *leaves(group.get("resource") or {}, numbered=OWNERS)]
            for scope in _dicts(group.get(scopes)):
                yield from ((record, around) for record in scope.get(records) or [])


def pruned(value: Any, test: RecordTest) -> tuple[Any, int, int]:
    """The value without the person's records and names, None where nothing is left; how many records went and how many
    were written without the names."""
    if not is_request(value):
        if has_several(value):
            return _pruned_inside(value, test)
        whose = test.whose(value)
        if whose is Whose.THEIRS:
            return None, 1, 0
        return (test.redacted(value), 0, 1) if whose is Whose.NAMES_THEM else (value, 0, 0)
    gone = renamed = left = 0
    beside = [(key, text) for key, text in leaves({k: v for k, v in value.items() if k not in _GROUPS})]
    for key, (scopes, records) in _GROUPS.items():
        groups: list[Json] = []
        for group in _dicts(value.get(key)):
            around, here = [*beside, *leaves(group.get("resource") or {}, numbered=OWNERS)], 0
            for scope in _dicts(group.get(scopes)):
                kept: list[Any] = []
                for record in scope.get(records) or []:
                    whose = test.whose(record, around)
                    gone, renamed = gone + (whose is Whose.THEIRS), renamed + (whose is Whose.NAMES_THEM)
                    if whose is not Whose.THEIRS:
                        kept.append(test.redacted(record) if whose is Whose.NAMES_THEM else record)
                scope[records] = kept
                here += len(kept)
            if here:
                groups.append(group)
            left += here
        if gone and key in value:
            value[key] = groups
    if gone and not left:
        return None, gone, renamed
    if test.names({**value, **{key: [_envelope(group, key) for group in _dicts(value.get(key))] for key in _GROUPS}}):
        value, renamed = test.redacted(value), renamed + 1  # beside the records
    return value, gone, renamed


def _pruned_inside(value: Any, test: RecordTest) -> tuple[Any, int, int]:
    """The same of what holds records of several people."""
    inner = list(enumerate(value) if isinstance(value, list) else cast(Json, value).items())
    results = [(key, *pruned(each, test)) for key, each in inner]
    kept = {
        key: rest for (key, rest, *_), (_, each) in zip(results, inner, strict=True) if rest is not None or each is None
    }
    gone, renamed = sum(each[2] for each in results), sum(each[3] for each in results)
    return (list(kept.values()) if isinstance(value, list) else kept), gone, renamed


def _envelope(group: Json, key: str) -> Json:
    """A group of records without them."""
    return {name: inner for name, inner in group.items() if name != _GROUPS[key][0]}


def parsed(text: bytes) -> Any:
    """The value of a line; None for one that is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _dicts(value: Any) -> list[Json]:
    items = cast(list[Any], value) if isinstance(value, list) else []
    return [cast(Json, each) for each in items if isinstance(each, dict)]
