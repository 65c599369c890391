"""The stage: from the files of a source to governed days in the lake, and the dataset that an iteration starts from.

Owns which days are made again (those whose files or settings changed) and the order of publication: table, ledger,
report, dataset. Refuses to judge a row. Every source file is read at each run and held in memory, about 2 kB
for a short trace: a million of them need the source to be split. Each day is then governed and written alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from pipeline.iteration import identify
from pipeline.recipe import DemoSource, LangfuseExportSource, LangfuseUiSource, Traces
from pipeline.storage import DatasetRef, ModelRef, Store, digest_json, write_atomically
from pipeline.traces.days import govern, report
from pipeline.traces.gates import VERSION
from pipeline.traces.lake import Lake, open_lake
from pipeline.traces.langfuse_export import read_export
from pipeline.traces.langfuse_ui import read_ui
from pipeline.traces.records import (
    UNKNOWN_DAY,
    DayReport,
    FileRows,
    GovernedTraces,
    Rejection,
    Score,
    Trace,
    Window,
    table_of,
    total,
)

Log = Callable[[str], None]
Source = DemoSource | LangfuseExportSource | LangfuseUiSource


class _Day:
    """What the source holds of one day."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.traces: list[Trace] = []
        self.rejected: list[Rejection] = []


def materialize(
    store: Store,
    source: Source,
    settings: Traces,
    *,
    export_uri: str,
    champion: ModelRef,
    model_name: str,
    number: int,
    recipe_digest: str,
    log: Log,
) -> GovernedTraces:
    """Bring the governed table up to date with the source, and name the iteration over its newest days.

    Days that did not change are not written again. Only days that the source lists now belong to the dataset.
    Raises ValueError when the source is missing or unreadable, OSError when the table cannot be written.
    """
    days, scores = _collect(_read(source, export_uri), log)
    reports: list[DayReport] = []
    with open_lake(store) as lake:
        for name, day in sorted(days.items()):
            reports.append(_govern_day(store, lake, name, day, scores, settings, log))
        window, others = _window(reports, settings.window_days)
        dataset = _publish(store, lake, window)
    told = [*window, *others]
    rejected = total(r.rejected for r in told)
    log(f"traces: {dataset.rows} rows over {len(window)} days, dataset {dataset.digest[:12]}")
    return GovernedTraces(
        iteration=identify(number, model_name, champion, dataset, recipe_digest),
        source=export_uri,
        days=tuple(sorted(told, key=lambda r: r.day)),
        seen=sum(r.seen for r in told),
        admitted=sum(r.admitted for r in told),
        rejected=rejected,
    )


def read(store: Store, dataset: DatasetRef, columns: Sequence[str] | None = None) -> pa.Table:
    """The dataset's rows, at the snapshot that it was published at, in the order of time.

    Raises ValueError when the dataset is not in this store or no longer whole.
    """
    window = store.read(_dataset_name(dataset.digest), Window)
    if window is None:
        raise ValueError(f"{store.root} has no dataset {dataset.digest[:12]}. Materialise the traces again.")
    with open_lake(store) as lake:
        if not lake.has(dataset.snapshot):
            raise ValueError(f"{lake.uri} has no snapshot {dataset.snapshot} any more. Materialise the traces again.")
        rows = lake.read(window.days, dataset.snapshot, columns)
    if rows.num_rows != dataset.rows:
        raise ValueError(
            f"{dataset.uri} holds {rows.num_rows} rows of dataset {dataset.digest[:12]}, not {dataset.rows}. "
            "Remove the lake folder and materialise the traces again."
        )
    return rows


def _read(source: Source, uri: str) -> Iterator[FileRows]:
    return read_ui(uri) if isinstance(source, LangfuseUiSource) else read_export(uri)


def _collect(files: Iterable[FileRows], log: Log) -> tuple[dict[str, _Day], dict[str, list[Score]]]:
    """Rows by day, scores by trace, and with each day every file that had a say in it."""
    days: defaultdict[str, _Day] = defaultdict(_Day)
    scores: defaultdict[str, list[Score]] = defaultdict(list)
    days_of: defaultdict[str, set[str]] = defaultdict(set)
    scored: list[tuple[str, str, set[str]]] = []
    for file in files:
        for trace in file.traces:
            days[trace.day].traces.append(trace)
            days_of[trace.trace_id].add(trace.day)
        for rejection in file.rejected:
            days[rejection.day].rejected.append(rejection)
        for score in file.scores:
            scores[score.trace_id].append(score)
        touched = {t.day for t in file.traces} | {r.day for r in file.rejected} | ({file.named_day} - {None})
        # A file that says nothing about any day is still accounted for.
        for day in touched or ({UNKNOWN_DAY} if not file.scores else set[str]()):
            days[str(day)].files[file.name] = file.sha256
        scored.append((file.name, file.sha256, {s.trace_id for s in file.scores}))
        others = len(file.rejected)
        log(f"traces: read {file.name}: {len(file.traces)} calls, {len(file.scores)} scores, {others} other rows")
    for name, sha256, trace_ids in scored:  # late feedback re-opens the day of its trace
        for day in set[str]().union(*(days_of[i] for i in trace_ids & days_of.keys())):
            days[day].files[name] = sha256
    if orphans := sum(len(s) for trace_id, s in scores.items() if trace_id not in days_of):
        log(f"traces: {orphans} scores are on traces that the source does not hold; they are left out")
    return days, scores


def _govern_day(
    store: Store, lake: Lake, name: str, day: _Day, scores: Mapping[str, list[Score]], settings: Traces, log: Log
) -> DayReport:
    rules = settings.model_dump(mode="json", exclude={"source", "window_days"})
    rules["regulated_regions"] = sorted(rules["regulated_regions"])
    digest = digest_json([VERSION, rules, sorted(day.files.items())])
    known = store.read(f"traces/days/{name}.json", DayReport)
    governed = name == UNKNOWN_DAY or lake.digests().get(name) == digest  # rows of no known day are never in the table
    if known is not None and known.digest == digest and governed:
        log(f"traces: {name} is up to date ({known.admitted} of {known.seen} rows)")
        return known
    admitted, refused = govern(day.traces, scores, settings)
    rejected = sorted([*day.rejected, *refused], key=lambda r: (r.file, r.line))
    made = report(name, digest, day.files, admitted, rejected)
    if not governed:
        lake.replace_day(name, table_of(admitted), digest)
    ledger = b"".join(
        msgspec.json.encode({"trace_id": r.trace_id, "reason": r.reason, "file": r.file, "line": r.line}) + b"\n"
        for r in rejected
    )
    write_atomically(store.path("traces", "rejected", f"{name}.jsonl"), ledger)
    store.write(f"traces/days/{name}.json", made)  # last: a day without its report is made again
    reasons = ", ".join(f"{reason} {count}" for reason, count in made.rejected.items())
    log(f"traces: {name} governed: {made.admitted} of {made.seen} rows admitted; rejected: {reasons or 'none'}")
    return made


def _window(reports: list[DayReport], size: int) -> tuple[list[DayReport], list[DayReport]]:
    """The newest `size` days with traces, and the days that have none to give."""
    filled = [r for r in reports if r.admitted]
    return filled[-size:], [r for r in reports if not r.admitted]


def _publish(store: Store, lake: Lake, window: list[DayReport]) -> DatasetRef:
    digest = digest_json([[r.day, r.digest] for r in window])
    rows = sum(r.admitted for r in window)
    snapshot = lake.snapshot if rows else ""
    made = Window(days=tuple(r.day for r in window), uri=lake.uri, rows=rows, digest=digest, snapshot=snapshot)
    name = _dataset_name(digest)
    published = store.once(name, Window, lambda: made)
    if not lake.has(published.snapshot) or published.uri != lake.uri:  # the lake was rebuilt from the same files
        store.write(name, made)
        published = made
    return DatasetRef(uri=published.uri, rows=published.rows, digest=digest, snapshot=published.snapshot)


def _dataset_name(digest: str) -> str:
    return f"traces/datasets/{digest}.json"
