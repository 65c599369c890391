"""Places that hold rows of a person: the governed table with the accounts of its days, the ledgers of rejected rows,
what we wrote of live traffic (spans and feedback of the gateway, the embedded export), and the operator's own source,
which is not edited. A score or a feedback is of the owner of its trace, where the trace has no other owner."""

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Collection, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import layout
from pipeline.core.removal import Place, Removal, of_files, of_lines, opened
from pipeline.core.storage import Store
from pipeline.governance.erasure.records import TABLE, Person
from pipeline.traces.lake import Lake
from pipeline.traces.sources import genai, otlp
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, External, Source, SourcePart
from pipeline.traces.watermark import Watermark


def table(lake: Lake, person: Person) -> Place:
    """The person's rows by day. They go in one commit, which gives their days a digest that no report has: the stage
    makes these days again, and accounts for the rows."""

    def remove() -> None:
        if days := lake.count(person.rows()):
            lake.erase(person.rows(), {day: f"erased-{secrets.token_hex(8)}" for day in days})

    return Place(TABLE, lambda: lake.count(person.rows()), remove)


def traces_of(lake: Lake, person: Person) -> set[str]:
    """Ids of traces in the table whose rows are all the person's."""
    days = sorted(lake.digests())

    def ids(rows: pc.Expression) -> set[str]:
        batches = lake.batches(days, lake.snapshot, ["trace_id"], rows)
        return {id for batch in batches for id in batch["trace_id"].to_pylist()}

    theirs = ids(person.rows())
    named = pc.field("trace_id").isin(pa.array(sorted(theirs), pa.string()))
    return theirs - ids(~person.rows() & named) if theirs else set()


def ledgers(store: Store, traces: Collection[str]) -> Place:
    """The lines of rejected rows of these traces: they stay, and no longer say which trace."""

    def goes(line: bytes) -> bool:
        return json.loads(line)["trace_id"] in traces

    def unnamed(line: bytes) -> bytes:
        return json.dumps({**json.loads(line), "trace_id": None}, ensure_ascii=False).encode() + b"\n"

    def removals() -> Iterator[Removal]:
        for path in sorted(store.path(layout.REJECTED).glob("*.jsonl")):
            yield from of_lines(store, path, goes, unnamed)

    return of_files("ledgers of rejected rows", removals)


class _ServedLine(otlp.ExportRequest, kw_only=True):
    """A line of the gateway's, or a row of the embedded export."""

    trace_id: str = msgspec.field(name="trace_id", default="")
    user_id: str | None = msgspec.field(name="user_id", default=None)


class _Owned(NamedTuple):
    trace_id: str
    user_id: str | None


def served(store: Store, person: Person, has_export: bool) -> tuple[frozenset[str], list[Place]]:
    """The traces in files of live traffic whose rows are all the person's, and these files. What is said of a trace
    goes first: after a kill the trace still tells whose it is. `has_export`: the embedded export is among them."""
    spans, feedback, calls, scores = _files(store, has_export)
    theirs, others = set[str](), set[str]()
    for owned in _lines([*spans, *calls]):
        (theirs if person.owns(owned.user_id) else others).add(owned.trace_id)
    traces = frozenset(theirs - others)

    def goes(line: bytes) -> bool:
        """Of a file with rows of theirs a line that breaks off goes, too: no reader can tell whose it is."""
        owned = _owned(line)
        return bool(line.strip()) if owned is None else person.owns(owned.user_id)

    def rows(paths: Collection[Path]) -> Iterator[Removal]:
        for path in paths:
            if any(person.owns(owned.user_id) for owned in _lines([path])):
                yield from of_lines(store, path, goes)

    def said(paths: Collection[Path]) -> Iterator[Removal]:
        for path in paths:
            yield from of_lines(store, path, lambda line: _trace_of(line) in traces)

    return traces, [
        of_files("feedback at the gateway", partial(said, feedback)),
        of_files("scores of the embedded export", partial(said, scores)),
        of_files("spans of the gateway", partial(rows, spans)),
        of_files("the embedded export", partial(rows, calls)),
    ]


def owners(store: Store, has_export: bool) -> Iterator[str]:
    """Of every span and exported row that names one."""
    spans, _, calls, _ = _files(store, has_export)
    yield from (owned.user_id for owned in _lines([*spans, *calls]) if owned.user_id)


def _files(store: Store, has_export: bool) -> tuple[list[Path], list[Path], list[Path], list[Path]]:
    """Files of spans and of feedback, which the gateway wrote, and of exported calls and scores."""
    paths = sorted(store.path(layout.PRODUCTION, "served").rglob("*.jsonl"))
    feedback = [path for path in paths if path.parent.name == layout.EVALUATION_RESULTS]
    exported = [sorted(store.path(layout.PRODUCTION, name).glob("*.jsonl*")) for name in ("observations_v2", "scores")]
    calls, scores = exported if has_export else ([], [])
    return [path for path in paths if path not in feedback], feedback, calls, scores


def _lines(paths: Collection[Path]) -> Iterator[_Owned]:
    for path in paths:
        with opened(path) as lines:
            yield from filter(None, map(_owned, lines))


def _owned(line: bytes) -> _Owned | None:
    """None for a line that breaks off."""
    try:
        read = _DECODE(line)
        user = read.user_id
        for each in () if user else otlp.records(read):
            span = msgspec.convert(each.record, otlp.Span)
            user = user or genai.text_of({**each.resource, **otlp.attributes(span.attributes)}, genai.USERS)
        return _Owned(read.trace_id, user)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _trace_of(line: bytes) -> str | None:
    try:
        return _DECODE(line).trace_id
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


_DECODE = msgspec.json.Decoder(_ServedLine).decode


class Remaining(NamedTuple):
    """`remains`: parts of the source that still name the person, or that cannot be read; `outside`: what to ask of the
    owner of a source that is not this deployment's."""

    remains: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


def in_source(store: Store, person: Person, address: Address | None) -> Remaining:
    """The embedded export is ours, and prompts have no owner. A source that cannot be opened is named by what was read
    of it last."""
    remains, outside = list[str](), list[str]()
    for each in address.each() if address is not None else ():
        kind = each.section.kind
        if kind in ("demo", "prompts"):
            continue
        try:
            if not each.uri and kind != "custom":
                raise ValueError("its address is not known")
            source = open_source(each)
        except ValueError:
            label = (store.read(layout.WATERMARK, Watermark) or Watermark()).source or f"the source {kind}"
            outside.append(f"{label}: ask its owner to delete what it has of the user")
            continue
        if isinstance(source, External):
            outside.append(f"{source.label}: {source.remains()}")
            continue
        try:
            remains += [f"{source.label}/{line}" for part in source.parts() for line in _of_part(source, part, person)]
        except (ValueError, OSError) as error:
            remains.append(f"{source.label} cannot be read, so whom it names is unknown: {error}")
    return Remaining(tuple(remains), tuple(outside))


def _of_part(source: Source, part: SourcePart, person: Person) -> Iterator[str]:
    traces = chain.from_iterable(block.traces for block in source.rows(part, hashlib.sha256()))
    try:
        lines = [each.line for each in traces if person.owns(each.user_id)]
    except (ValueError, OSError) as error:
        yield f"{part.name}: not read ({error})"
        return
    files = Counter(part.files[line - 1].name if part.files else part.name for line in lines)
    yield from (f"{name}: {rows} rows" for name, rows in files.items())
