"""The days' accounts after an erasure: how many admitted rows of which file became erased ones, and the ledgers.

Owns that the equation still holds per file. Refuses to touch the table. A ledger keeps the line of every rejected row;
of the forgotten user's rows it no longer says which trace they were.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline import layout
from pipeline.erasure.affected import Person
from pipeline.storage import Store, write_atomically
from pipeline.traces.lake import Lake
from pipeline.traces.records import DayReport, FileReport, Reason, day_digest, total


def count(lake: Lake, person: Person, day: str) -> tuple[Counter[str], set[str]]:
    """The person's rows of a day by source file, and the ids of their traces and calls."""
    files: Counter[str] = Counter()
    ids: set[str] = set()
    columns = ["user_id", "timestamp", "source_file", "trace_id", "observation_id"]
    for batch in lake.batches([day], lake.snapshot, columns):
        matching_rows = pa.table(batch).filter(person.rows())
        files.update(matching_rows["source_file"].to_pylist())
        ids.update(matching_rows["trace_id"].to_pylist(), matching_rows["observation_id"].to_pylist())
    return files, ids


def of_others(lake: Lake, person: Person, rows: Collection[str]) -> set[str]:
    """Which of these traces and calls the table has as somebody else's too."""
    columns = ["user_id", "trace_id", "observation_id"]
    value_set = pa.array(sorted(rows), pa.string())
    others = pc.field("user_id").is_valid() & ~pc.field("user_id").isin(pa.array(sorted(person.ids), pa.string()))
    where = others & (pc.field("trace_id").isin(value_set) | pc.field("observation_id").isin(value_set))
    batches = lake.batches(sorted(lake.digests()), lake.snapshot, columns, where)
    return {id for batch in batches for name in columns[1:] for id in batch[name].to_pylist()} & set(rows)


def after(store: Store, lake: Lake, day: str, files: Mapping[str, int], proof: str) -> DayReport | None:
    """The day's report once these rows are gone; None when report and table disagree: the stage makes the day again."""
    before = store.read(layout.day_report(day), DayReport)
    if before is None or before.digest != lake.digests().get(day):
        return None
    if any(f.admitted < files.get(f.name, 0) for f in before.files) or files.keys() - {f.name for f in before.files}:
        return None
    reports = tuple(_without(file, files.get(file.name, 0)) for file in before.files)
    erased = tuple(sorted({*before.erased, proof}))
    admitted = sum(file.admitted for file in reports)
    return DayReport(
        day=day,
        rules=before.rules,
        digest=day_digest(before.rules, {file.name: file.sha256 for file in reports}, erased),
        files=reports,
        seen=before.seen,
        admitted=admitted,
        rejected=total(file.rejected for file in reports),
        near_duplicates=min(before.near_duplicates, admitted),
        erased=erased,
    )


def settle(store: Store, lake: Lake, report: DayReport) -> None:
    """Publish the report and complete its ledger, if the table is at that state of the day. Safe to repeat."""
    if lake.digests().get(report.day) != report.digest:
        return  # the stage made the day again meanwhile
    wanted = Counter({file.name: file.rejected.get(Reason.ERASED, 0) for file in report.files})
    lines = _ledger(store, report.day)
    missing = wanted - Counter(line["file"] for line in lines if line["reason"] == Reason.ERASED)
    lines += [
        {"trace_id": None, "reason": Reason.ERASED, "file": file, "line": None, "detail": None}
        for file in sorted(missing.elements())
    ]
    _write(store, report.day, lines)
    store.write(layout.day_report(report.day), report)


def unname(store: Store, traces: Collection[str]) -> None:
    """Take the user's trace ids out of the ledgers."""
    for path in sorted(store.path(layout.REJECTED).glob("*.jsonl")):
        lines = _ledger(store, path.stem)
        if any(line["trace_id"] in traces for line in lines):
            unnamed = [{**line, "trace_id": None} if line["trace_id"] in traces else line for line in lines]
            _write(store, path.stem, unnamed)


def _without(file: FileReport, rows: int) -> FileReport:
    if not rows:
        return file
    rejected = {**file.rejected, Reason.ERASED: file.rejected.get(Reason.ERASED, 0) + rows}
    fields = {name: getattr(file, name) for name in ("name", "sha256", "bytes", "seen")}
    return FileReport(**fields, admitted=file.admitted - rows, rejected=total([rejected]))


def _ledger(store: Store, day: str) -> list[dict[str, Any]]:
    path = store.path(layout.rejected_rows(day))
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _write(store: Store, day: str, lines: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomically(store.path(layout.rejected_rows(day)), text)
