"""The stage: makes the days whose parts, rules or erased users changed, then the watermark and the dataset that an
iteration starts from. With nothing new no file is read."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import groupby

import pyarrow as pa

from pipeline.core import layout
from pipeline.core.iteration import identify
from pipeline.core.storage import DatasetRef, Store, digest_json
from pipeline.traces.context import StageContext
from pipeline.traces.days import kept_from, make_days, rules_digest
from pipeline.traces.detect import refuse_below_floor, wrong_kind
from pipeline.traces.engine import open_engine
from pipeline.traces.erased import shared_lock
from pipeline.traces.lake import Lake, LakeConfig, open_lake
from pipeline.traces.pii.recogniser import recogniser
from pipeline.traces.reading import Reading, staging
from pipeline.traces.records import DayReport, GovernedTraces, Scope, Window
from pipeline.traces.scope import CountedDay, Producer, count, identity, scope_of, where
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address
from pipeline.traces.watermark import Watermark, compare


def materialize(
    context: StageContext, address: Address, producer: Producer, number: int, now: datetime
) -> GovernedTraces:
    """Bring the governed table up to date with the source, and name the iteration over its newest days.

    `producer`: the champion; `number`: of champions before it. A dataset of 0 rows is not published. Only days that the
    source lists now belong to the dataset. Raises ValueError when the source is unreadable or below the floor (then
    nothing is published), when another run replaced a day meanwhile or a recogniser cannot be loaded; OSError when the
    table cannot be written.
    """
    store, log, settings = context.store, context.log, context.recipe.traces
    if settings.pii.recogniser is not None:
        recogniser(settings.pii.recogniser)
    for prefix, each in settings.imported.items():
        if each.day.isoformat() < kept_from(settings, now):
            log(f"traces: WARNING: {prefix} is of {each.day}, which traces.governed_days does not keep: it is left out")
    source = open_source(address)
    try:
        parts = source.parts()
    except ValueError as error:
        raise ValueError(f"{error} {wrong_kind(address.section)}".strip()) from error
    watermark = (store.read(layout.WATERMARK, Watermark) or Watermark()).read_by(settings.reader)
    changes = compare(watermark, parts)
    rules = rules_digest(settings)

    def allow(current: Watermark, new_reports: Sequence[DayReport] = ()) -> None:
        new = {report.day: report for report in new_reports}
        reports = {report.day: report for report in _reports(store, current)} | new
        listed = [reports[day] for day in sorted(current.days & reports.keys())]
        for prefix, calls in groupby(sorted(current.calls, key=settings.import_of), settings.import_of):
            refuse_below_floor(prefix or source.label, listed, set(calls), settings)

    with shared_lock(store) as forgotten, open_lake(context.lake) as lake:
        stale = {day for day in _stale(store, lake, watermark, rules) if day >= kept_from(settings, now)}
        if changes.changed or changes.gone or stale:
            megabytes, new = sum(part.size for part in parts) / 1e6, len(changes.changed)
            log(f"traces: {source.label} lists {len(parts)} parts, {megabytes:,.1f} MB; {new} are new")
            with staging(store) as folder, open_engine(context.recipe.compute, context.ray) as engine:
                ordered = dict(enumerate(sorted(parts, key=lambda part: part.name)))
                reading = Reading(context, address, now, lake, forgotten, watermark, ordered, engine, folder)
                days = reading.read(changes, stale)
                about = make_days(reading, days, partial(allow, reading.watermark(source.label, {})))
            store.write(layout.WATERMARK, reading.watermark(source.label, about))
        else:
            allow(watermark)
            log(f"traces: nothing new in the {len(parts)} parts of {source.label}")
        current = store.read(layout.WATERMARK, Watermark) or Watermark()
        reports = _reports(store, current)
        window, scope = count(lake, scope_of(settings.counts, producer), reports, settings.window_days)
        dataset = _publish(store, lake, window, scope)
    filled = [day.report for day in window] or [r for r in reports if r.admitted][-settings.window_days :]
    day_reports = sorted([*filled, *(r for r in reports if not r.admitted)], key=lambda r: r.day)
    log(f"traces: {dataset.rows} rows over {len(window)} days, dataset {dataset.digest[:12]}")
    return GovernedTraces(
        iteration=identify(number, producer.name, producer.model, dataset, context.recipe.digest()),
        source=source.label,
        days=tuple(day_reports),
    )


def window_of(store: Store, lake: Lake, dataset: DatasetRef) -> Window:
    """The days of a dataset and their snapshot. Raises ValueError where the dataset is gone."""
    window = store.read(layout.window(dataset.digest), Window)
    if window is None:
        raise ValueError(
            f"{store.root} has no dataset {dataset.digest[:12]}: its rows were erased, or dropped by retention. "
            "Materialise the traces again."
        )
    # The record's snapshot, not the reference's: the same rows may have been published again since.
    if not lake.has(window.snapshot):
        raise ValueError(f"{lake.uri} has no snapshot {window.snapshot} any more. Materialise the traces again.")
    return window


def complete(dataset: DatasetRef, rows: int) -> None:
    """Raises ValueError unless `rows`, as read of a dataset, are all of it."""
    if rows != dataset.rows:
        raise ValueError(
            f"{dataset.uri} holds {rows} rows of dataset {dataset.digest[:12]}, not {dataset.rows}. "
            "Remove the lake folder and materialise the traces again."
        )


def read(store: Store, lake_config: LakeConfig, dataset: DatasetRef, columns: Sequence[str] | None = None) -> pa.Table:
    """The dataset's rows in the order of time. Raises ValueError where it is gone, or no longer whole."""
    with open_lake(lake_config) as lake:
        window = window_of(store, lake, dataset)
        rows = lake.read(window.days, window.snapshot, columns, where(window.scope))
    complete(dataset, rows.num_rows)
    return rows


def _stale(store: Store, lake: Lake, known: Watermark, rules: str) -> set[str]:
    """Days whose table is not what their report says, or whose rules have changed since."""
    digests, reports = lake.digests(), _reports(store, known)
    return known.days - {each.day for each in reports if each.rules == rules and each.is_in(digests)}


def _reports(store: Store, current: Watermark) -> list[DayReport]:
    records = (store.read(layout.day_report(day), DayReport) for day in sorted(current.days))
    return [report for report in records if report is not None]


def _publish(store: Store, lake: Lake, window: Sequence[CountedDay], scope: Scope) -> DatasetRef:
    digest = digest_json(identity(window, scope))
    rows = sum(day.rows for day in window)
    if not rows:
        return DatasetRef(uri=lake.uri, rows=0, digest=digest)
    dataset = Window(
        days=tuple(day.report.day for day in window),
        uri=lake.uri,
        rows=rows,
        digest=digest,
        snapshot=lake.snapshot,
        scope=Scope() if all(day.whole for day in window) else scope,
    )
    name = layout.window(digest)
    published = store.once(name, Window, lambda: dataset)
    if not lake.has(published.snapshot) or published.uri != lake.uri:  # the lake was rebuilt, or the snapshot expired
        store.write(name, dataset)
        published = dataset
    return DatasetRef(uri=published.uri, rows=published.rows, digest=digest, snapshot=published.snapshot)
