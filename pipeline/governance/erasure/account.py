"""The days' accounts after an erasure: admitted rows of a file become erased ones, so its counts still add up; ledgers
keep the line of every rejected row, without the trace where it was the user's."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core import layout
from pipeline.core.removal import Place, Removal, of_files
from pipeline.core.storage import Store, write_atomically
from pipeline.governance.erasure.owner import Person
from pipeline.traces.lake import Lake
from pipeline.traces.records import DayReport, FileReport, Reason, day_digest, total


def count(lake: Lake, person: Person) -> dict[str, Counter[str]]:
    """The person's rows by day and source file."""
    counted: dict[str, Counter[str]] = {}
    for day in lake.count(person.rows()):
        files = counted.setdefault(day, Counter())
        for batch in lake.batches([day], lake.snapshot, ["source_file"], person.rows()):
            files.update(batch["source_file"].to_pylist())
    return counted


def traces(lake: Lake, person: Person) -> set[str]:
    """Ids of traces in the table whose rows are all the person's."""
    days = sorted(lake.digests())

    def ids(rows: pc.Expression) -> set[str]:
        batches = lake.batches(days, lake.snapshot, ["trace_id"], rows)
        return {id for batch in batches for id in batch["trace_id"].to_pylist()}

    theirs = ids(person.rows())
    named = pc.field("trace_id").isin(pa.array(sorted(theirs), pa.string()))
    return theirs - ids(~person.rows() & named) if theirs else set()


def after(store: Store, lake: Lake, day: str, files: Mapping[str, int], proof: str) -> DayReport | None:
    """The day's report once these rows are gone; None when report and table disagree: the stage makes the day again."""
    before = store.read(layout.day_report(day), DayReport)
    if before is None or before.digest != lake.digests().get(day):
        return None
    if any(f.admitted < files.get(f.name, 0) for f in before.files) or files.keys() - {f.name for f in before.files}:
        return None
    reports = tuple(_without(file, files.get(file.name, 0)) for file in before.files)
    erased = tuple(sorted({*before.erased, proof}))
    digest = day_digest(before.rules, {file.name: file.sha256 for file in reports}, erased)
    return DayReport(day=day, rules=before.rules, digest=digest, files=reports, erased=erased)


def settle(store: Store, lake: Lake, report: DayReport) -> None:
    """Publish the report and complete its ledger, if the table is at that state of the day. Safe to repeat."""
    if lake.digests().get(report.day) != report.digest:
        return  # the stage made the day again meanwhile
    wanted = Counter({file.name: file.rejected.get(Reason.ERASED, 0) for file in report.files})
    ledger = store.path(layout.rejected_rows(report.day))
    text = ledger.read_text() if ledger.exists() else ""
    lines = map(json.loads, text.splitlines())
    missing = wanted - Counter(line["file"] for line in lines if line["reason"] == Reason.ERASED)
    new = (
        {"trace_id": None, "reason": Reason.ERASED, "file": file, "line": None, "detail": None}
        for file in sorted(missing.elements())
    )
    if missing:
        text += "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in new)
        write_atomically(ledger, text)
    store.write(layout.day_report(report.day), report)


def ledgers(store: Store, traces: Collection[str]) -> Place:
    """The lines of rejected rows of these traces: they stay, and no longer say which trace."""

    def removals() -> Iterator[Removal]:
        for path in sorted(store.path(layout.REJECTED).glob("*.jsonl")):
            lines = path.read_text().splitlines(keepends=True)
            rows = 0
            for at, line in enumerate(lines):
                if (row := json.loads(line))["trace_id"] in traces:
                    lines[at] = json.dumps({**row, "trace_id": None}, ensure_ascii=False) + "\n"
                    rows += 1
            if rows:
                name = str(path.relative_to(store.root))
                yield Removal(name, rows, partial(write_atomically, path, "".join(lines)))

    return of_files("ledgers of rejected rows", removals)


def _without(file: FileReport, rows: int) -> FileReport:
    if not rows:
        return file
    rejected = {**file.rejected, Reason.ERASED: file.rejected.get(Reason.ERASED, 0) + rows}
    fields = {name: getattr(file, name) for name in ("name", "sha256", "bytes", "seen")}
    return FileReport(**fields, admitted=file.admitted - rows, rejected=total([rejected]))
