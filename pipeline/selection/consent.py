"""Consent, asked again: which rows of a dataset the governed table still holds now."""

from collections.abc import Collection
from functools import cache

import pyarrow as pa
from pyarrow.compute import Expression

from pipeline.core import layout
from pipeline.core.storage import DatasetRef, Store
from pipeline.traces.arrow import pc
from pipeline.traces.erased import forgotten
from pipeline.traces.lake import LakeConfig, open_lake
from pipeline.traces.records import Window
from pipeline.traces.scope import where

COLUMNS = ("trace_id", "observation_id", "consent", "user_id")


def consented(store: Store, lake_config: LakeConfig, dataset: DatasetRef) -> frozenset[tuple[str, str]]:
    """(trace_id, observation_id) of the dataset's rows that may be trained on now. Call it inside `shared_lock`.
    Raises ValueError when the dataset is not in this store."""
    window = store.read(layout.window(dataset.digest), Window)
    if window is None:
        raise ValueError(f"{store.root} has no dataset {dataset.digest[:12]}. Materialise the traces again.")
    return agreed(store, lake_config, window.days, where(window.scope))


def agreed(
    store: Store, lake_config: LakeConfig, days: Collection[str], rows: Expression | None = None
) -> frozenset[tuple[str, str]]:
    """The same of all that the table has of these days (of `rows` where they are given)."""
    entry_of = cache(forgotten(store).entry)  # the table has a user's id or the pseudonym of it: both are recognised
    kept: set[tuple[str, str]] = set()
    with open_lake(lake_config) as lake:
        for batch in lake.batches(days, lake.snapshot, COLUMNS, rows):
            table = pa.table(batch).filter(pc.field("consent"))
            for trace, observation, _, user in zip(*(table[name].to_pylist() for name in COLUMNS), strict=True):
                if entry_of(user) is None:
                    kept.add((trace, observation))
    return frozenset(kept)
