"""Retention: drops governed days that are older than the recipe allows. Such a day keeps its report, in
`traces/days/retired/`."""

from collections.abc import Collection
from datetime import datetime

from pipeline.core import audit, layout
from pipeline.core.storage import Store, sweep_unfinished
from pipeline.traces.context import StageContext
from pipeline.traces.days import kept_from
from pipeline.traces.lake import open_lake
from pipeline.traces.records import Window

GRACE_S = 24 * 3600
"""Files that no snapshot ever named and that are younger than this may belong to a commit in flight."""


def retain(context: StageContext, now: datetime) -> list[str]:
    """Drop the days that are overdue with every snapshot of them, inside `exclusive_lock`; the days. A pass that broke
    off is completed by the next. Raises OSError when lake or disk fail."""
    store, first = context.store, kept_from(context.recipe.traces, now)
    sweep_unfinished(store.path(layout.TRACES))  # of a killed pass
    with open_lake(context.lake) as lake:
        reported = {path.stem for path in store.path(layout.DAYS).glob("????-??-??.json")}
        days = sorted(day for day in reported | lake.digests().keys() if day < first)
        if not days:
            return []
        lost = ended(store, days)
        lake.drop_days(days)
        lake.expire(None)
        swept = lake.sweep(0)
    detail = {"days": days, "datasets": lost, "files": swept.files}
    audit.record(store, "retention", f"governed before {first}", detail, now, once=True)
    retired = store.path(layout.RETIRED_DAYS)
    retired.mkdir(parents=True, exist_ok=True)
    for day in days:
        store.path(layout.rejected_rows(day)).unlink(missing_ok=True)
        report = store.path(layout.day_report(day))
        if report.exists():
            report.replace(retired / report.name)  # last: as long as it is there, the day is not done with
    context.log(f"retention: {len(days)} governed days dropped, {len(lost)} datasets end with them")
    return days


def retired(store: Store) -> frozenset[str]:
    return frozenset(path.stem for path in store.path(layout.RETIRED_DAYS).glob("*.json"))


def windows(store: Store) -> list[Window]:
    paths = sorted(store.path(layout.DATASETS).glob("*.json"))
    records = [store.read(layout.window(path.stem), Window) for path in paths]
    return [window for window in records if window is not None]


def ended(store: Store, days: Collection[str]) -> list[str]:
    """Digests of the datasets that hold one of these days."""
    return sorted(window.digest for window in windows(store) if not set(days).isdisjoint(window.days))
