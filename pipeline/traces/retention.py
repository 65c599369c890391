"""Retention: deletes governed days and raw files that are older than the recipe allows. A governed day keeps its
report, in `traces/days/retired/`. Raw data outside the data root is only named."""

from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path

from pipeline.core import audit, layout
from pipeline.core.storage import Record, Store, sweep_unfinished
from pipeline.recipe.traces import Traces
from pipeline.traces.context import StageContext
from pipeline.traces.days import kept_from
from pipeline.traces.lake import LakeConfig, open_lake
from pipeline.traces.records import Window
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, SourcePart
from pipeline.traces.watermark import Watermark, touched_by

GRACE_S = 24 * 3600
"""Files that no snapshot ever named and that are younger than this may belong to a commit in flight."""


class Retained(Record):
    days: tuple[str, ...] = ()
    """Governed days that were dropped."""
    datasets: tuple[str, ...] = ()
    """Digests of the datasets that held one of them: they can no longer be read."""
    raw_deleted: tuple[str, ...] = ()
    raw_overdue: tuple[str, ...] = ()
    """Parts of the source that are overdue and not ours to delete."""


def retain(context: StageContext, address: Address, now: datetime) -> Retained:
    """Drop what is overdue, governed days with every snapshot of them, inside `exclusive_lock`. A pass that broke
    off is completed by the next. Raises ValueError when the source cannot be listed, OSError when lake or disk fail."""
    store, settings, log = context.store, context.recipe.traces, context.log
    sweep_unfinished(store.path(layout.TRACES))  # of a killed pass
    governed = _drop_days(store, context.lake, kept_from(settings, now), now)
    log(f"retention: {len(governed.days)} governed days dropped, {len(governed.datasets)} datasets end with them")
    deleted, named = _drop_raw(store, settings, address, now)
    log(f"retention: {len(deleted)} raw files deleted, {len(named)} are overdue elsewhere")
    for name in named:
        log(f"retention: overdue in {open_source(address).label}: {name}")
    return governed.model_copy(update={"raw_deleted": deleted, "raw_overdue": named})


def retired(store: Store) -> frozenset[str]:
    return frozenset(path.stem for path in store.path(layout.RETIRED_DAYS).glob("*.json"))


def windows(store: Store) -> list[Window]:
    paths = sorted(store.path(layout.DATASETS).glob("*.json"))
    records = [store.read(layout.window(path.stem), Window) for path in paths]
    return [window for window in records if window is not None]


def ended(store: Store, days: Collection[str]) -> list[str]:
    """Digests of the datasets that hold one of these days."""
    return sorted(window.digest for window in windows(store) if not set(days).isdisjoint(window.days))


def _drop_days(store: Store, lake_config: LakeConfig, first: str, now: datetime) -> Retained:
    with open_lake(lake_config) as lake:
        reported = {path.stem for path in store.path(layout.DAYS).glob("????-??-??.json")}
        days = tuple(sorted(day for day in reported | lake.digests().keys() if day < first))
        if not days:
            return Retained()
        lost = tuple(ended(store, days))
        lake.drop_days(days)
        lake.expire(None)
        swept = lake.sweep(0)
    detail = {"days": list(days), "datasets": list(lost), "files": swept.files}
    audit.record(store, "retention", f"governed before {first}", detail, now, once=True)
    retired = store.path(layout.RETIRED_DAYS)
    retired.mkdir(parents=True, exist_ok=True)
    for day in days:
        store.path(layout.rejected_rows(day)).unlink(missing_ok=True)
        report = store.path(layout.day_report(day))
        if report.exists():
            report.replace(retired / report.name)  # last: as long as it is there, the day is not done with
    return Retained(days=days, datasets=lost)


def _drop_raw(
    store: Store, settings: Traces, address: Address, now: datetime
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the deleted raw files, and of the parts that their owner has to delete. A part is overdue when every day
    of it is, as it was read: one that is new or changed since is not."""
    if settings.retention.raw_days is None:
        return (), ()
    first = (now.date() - timedelta(days=settings.retention.raw_days)).isoformat()
    read = (store.read(layout.WATERMARK, Watermark) or Watermark()).parts
    paths: dict[str, Path | None] = {}
    for part in open_source(address).parts():
        known = read.get(part.name)
        days = touched_by([known]) if known is not None and known.version == part.version else set[str]()
        if days and max(days) < first:
            paths[part.name] = _ours(store, address, part)
    ours = {name: path for name, path in paths.items() if path is not None}
    if ours:
        audit.record(store, "retention", f"raw before {first}", {"files": list(ours)}, now)
    for path in ours.values():
        path.unlink(missing_ok=True)
    return tuple(ours), tuple(name for name, path in paths.items() if path is None)


def _ours(store: Store, address: Address, part: SourcePart) -> Path | None:
    """The part's file, if it lies under the data root."""
    if "://" in address.uri:
        return None
    root = Path(address.uri)
    path = (root if root.is_file() else root / part.name).resolve()
    return path if path.is_file() and path.is_relative_to(store.root.resolve()) else None
