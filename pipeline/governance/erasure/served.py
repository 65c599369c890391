"""Rows that we wrote of live traffic: spans and feedback of the gateway, and the embedded export. A score or a feedback
belongs to the owner of its trace, where the trace has no other owner."""

import re
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from pipeline.core import layout
from pipeline.core.removal import Place, Removal, of_files, of_lines, opened
from pipeline.core.storage import Store
from pipeline.governance.erasure.owner import Person
from pipeline.traces.sources import genai, otlp
from pipeline.traces.sources.fields import utc


class _ServedLine(otlp.ExportRequest, kw_only=True):
    """A line of the gateway's, or a row of the embedded export."""

    trace_id: str = msgspec.field(name="trace_id", default="")
    user_id: str | None = msgspec.field(name="user_id", default=None)
    timestamp: str = ""
    start_time: str = msgspec.field(name="start_time", default="")


class _Owned(NamedTuple):
    trace_id: str
    user_id: str | None
    moment: datetime


class ServedRows:
    """What these files have of a person. `has_export`: whether the embedded export is among them."""

    def __init__(self, store: Store, person: Person, has_export: bool) -> None:
        self._store, self._person = store, person
        self._spans, self._feedback = _of_gateway(store)
        self._calls, self._scores = _of_export(store) if has_export else ([], [])

    @cached_property
    def traces(self) -> frozenset[str]:
        """Ids of traces whose rows are all the person's."""
        theirs: set[str] = set()
        others: set[str] = set()
        for path in (*self._spans, *self._calls):
            with opened(path) as lines:
                for owned in filter(None, map(_owned, lines)):
                    (theirs if self._is_theirs(owned) else others).add(owned.trace_id)
        return frozenset(theirs - others)

    def places(self) -> list[Place]:
        """What is said of a trace goes first: after a kill the trace still tells whose it is."""
        traces = self.traces
        return [
            of_files("feedback at the gateway", partial(self._said_of, self._feedback, traces)),
            of_files("scores of the embedded export", partial(self._said_of, self._scores, traces)),
            of_files("spans of the gateway", partial(self._of, self._spans)),
            of_files("the embedded export", partial(self._of, self._calls)),
        ]

    def _said_of(self, paths: Collection[Path], traces: Collection[str]) -> Iterator[Removal]:
        for path in paths:
            yield from of_lines(self._store, path, lambda line: _trace_of(line) in traces)

    def _of(self, paths: Collection[Path]) -> Iterator[Removal]:
        for path in paths:
            yield from of_lines(self._store, path, self._goes(path))

    def _goes(self, path: Path) -> Callable[[bytes], bool]:
        """A line that breaks off is theirs where it names them as its owner, or begins a line of theirs alone."""
        named = re.compile(
            b'"user_id": ?(?:%s)' % b"|".join(map(re.escape, map(msgspec.json.encode, self._person.ids)))
        )
        torn: set[bytes] = set()
        with opened(path) as lines:
            torn = {line.strip() for line in lines if _owned(line) is None} - {b""}
        if torn:
            with opened(path) as lines:
                whole = [(line, self._is_theirs(owned)) for line in lines if (owned := _owned(line)) is not None]
            begun = {each: {theirs for line, theirs in whole if line.startswith(each)} for each in torn}
            torn = {each for each in torn if begun[each] == {True} or named.search(each)}

        def goes(line: bytes) -> bool:
            owned = _owned(line)
            return line.strip() in torn if owned is None else self._is_theirs(owned)

        return goes

    def _is_theirs(self, owned: _Owned) -> bool:
        return self._person.owns(owned.user_id) and self._person.counts(owned.moment)


def owners(store: Store, has_export: bool) -> Iterator[str]:
    """Of every span and exported row that names one."""
    for path in (*_of_gateway(store)[0], *(_of_export(store)[0] if has_export else ())):
        with opened(path) as lines:
            yield from (owned.user_id for owned in map(_owned, lines) if owned is not None and owned.user_id)


def _of_gateway(store: Store) -> tuple[list[Path], list[Path]]:
    """Files of spans, and of feedback."""
    paths = sorted(store.path(layout.PRODUCTION, "served").rglob("*.jsonl"))
    feedback = [path for path in paths if path.parent.name == layout.EVALUATION_RESULTS]
    return [path for path in paths if path not in feedback], feedback


def _of_export(store: Store) -> tuple[list[Path], list[Path]]:
    """Files of calls, and of scores."""
    calls, scores = (store.path(layout.PRODUCTION, name) for name in ("observations_v2", "scores"))
    return sorted(calls.glob("*.jsonl*")), sorted(scores.glob("*.jsonl*"))


def _owned(line: bytes) -> _Owned | None:
    """None for a line that breaks off."""
    try:
        read = _DECODE(line)
        user = read.user_id
        for each in () if user else otlp.records(read):
            span = msgspec.convert(each.record, otlp.Span)
            user = user or genai.text_of({**each.resource, **otlp.attributes(span.attributes)}, genai.USERS)
        return _Owned(read.trace_id, user, utc(read.timestamp or read.start_time).replace(tzinfo=UTC))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _trace_of(line: bytes) -> str | None:
    try:
        return _DECODE(line).trace_id
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


_DECODE = msgspec.json.Decoder(_ServedLine).decode
