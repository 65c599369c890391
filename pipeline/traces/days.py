"""One day of traces, from the rows that bear its date to the rows that are admitted: a pure function.

Owns what only a comparison of rows can tell: which export of an observation is the newest, which model call stands for
its trace, which rows say the same. Refuses to look beyond the day, so that each day can be made again alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from pipeline.recipe import Traces
from pipeline.traces.gates import check
from pipeline.traces.records import DayReport, FileReport, Reason, Rejection, Score, Trace, total

EARLIEST = datetime.min.replace(tzinfo=UTC)


def govern(
    traces: Iterable[Trace], scores: Mapping[str, list[Score]], settings: Traces
) -> tuple[list[Trace], list[Rejection]]:
    """The admitted traces in the order of time, and every other one with its reason."""
    rejected: list[Rejection] = []
    newest = _newest(traces, rejected)
    admitted: dict[bytes, Trace] = {}
    for trace in sorted(_last_calls(newest, rejected), key=_order):
        verdict = check(with_feedback(trace, scores.get(trace.trace_id, [])), settings)
        if isinstance(verdict, Reason):
            rejected.append(_out(trace, verdict))
        elif admitted.setdefault(content_key(verdict), verdict) is not verdict:
            rejected.append(_out(trace, Reason.DUPLICATE))
    return list(admitted.values()), rejected


def content_key(trace: Trace) -> bytes:
    """What makes two rows the same answer: one user, one moment, one prompt, one completion.

    The same answer at another moment is a second sample of the model, and signal for its group.
    """
    parts = [trace.user_id, trace.timestamp, trace.messages, trace.completion]
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).digest()


def with_feedback(trace: Trace, scores: Iterable[Score]) -> Trace:
    """The trace with the scores on it or on its last model call; those on other observations are not about it."""
    own = {s.id: s for s in sorted(scores, key=lambda s: s.updated_at or EARLIEST)}  # the newest export of each
    kept = [s for s in own.values() if s.observation_id in (None, trace.observation_id)]
    return msgspec.structs.replace(trace, feedback=sorted(kept, key=lambda s: s.id))


def report(
    day: str, digest: str, files: Mapping[str, str], admitted: Iterable[Trace], rejected: Iterable[Rejection]
) -> DayReport:
    """The account of a day, per file (`files`: name to sha256) and in all."""
    kept = Counter(trace.file for trace in admitted)
    reasons: defaultdict[str, Counter[Reason]] = defaultdict(Counter)
    for rejection in rejected:
        reasons[rejection.file][rejection.reason] += 1
    reports = tuple(
        FileReport(
            name=name,
            sha256=sha256,
            seen=kept[name] + reasons[name].total(),
            admitted=kept[name],
            rejected=total([reasons[name]]),
        )
        for name, sha256 in sorted(files.items())
    )
    return DayReport(
        day=day,
        digest=digest,
        files=reports,
        seen=sum(f.seen for f in reports),
        admitted=sum(f.admitted for f in reports),
        rejected=total(f.rejected for f in reports),
    )


def _newest(traces: Iterable[Trace], rejected: list[Rejection]) -> list[Trace]:
    newest: dict[str, Trace] = {}
    for trace in traces:
        known = newest.get(trace.observation_id)
        if known is None:
            newest[trace.observation_id] = trace
            continue
        older, newer = (known, trace) if _age(known) <= _age(trace) else (trace, known)
        newest[trace.observation_id] = newer
        rejected.append(_out(older, Reason.SUPERSEDED))
    return list(newest.values())


def _last_calls(traces: Iterable[Trace], rejected: list[Rejection]) -> list[Trace]:
    calls: defaultdict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        calls[trace.trace_id].append(trace)
    last: list[Trace] = []
    for each in calls.values():
        *others, final = sorted(each, key=lambda t: (t.timestamp, *_age(t)))
        last.append(final)
        for other in others:
            same = (other.messages, other.completion) == (final.messages, final.completion)
            rejected.append(_out(other, Reason.DUPLICATE if same else Reason.INTERMEDIATE))
    return last


def _age(trace: Trace) -> tuple[Any, ...]:
    return trace.updated_at or EARLIEST, trace.file, trace.line


def _order(trace: Trace) -> tuple[Any, ...]:
    return trace.timestamp, trace.trace_id, trace.observation_id


def _out(trace: Trace, reason: Reason) -> Rejection:
    return Rejection(trace.trace_id, reason, trace.file, trace.line, trace.day)
