"""The users of a dataset as marks (`traces/datasets/members/`), written before its snapshot expires, so that an erasure
can still tell which models saw a user."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

import pyarrow as pa

from pipeline.core import layout
from pipeline.core.storage import Record, Store
from pipeline.traces.erased import bind, user_hash
from pipeline.traces.lake import Lake
from pipeline.traces.records import Window
from pipeline.traces.scope import where


class DatasetUsers(Record):
    """The newest row of each user of a dataset, by mark."""

    newest: dict[str, datetime]

    def has(self, mark: str, since: datetime | None) -> bool:
        newest = self.newest.get(mark)
        return newest is not None and (since is None or newest >= since)


def windows(store: Store) -> list[Window]:
    paths = sorted(store.path(layout.DATASETS).glob("*.json"))
    records = [store.read(layout.window(path.stem), Window) for path in paths]
    return [window for window in records if window is not None]


def ended(store: Store, days: Collection[str]) -> list[str]:
    return [window.digest for window in windows(store) if not set(days).isdisjoint(window.days)]


def dataset_users(store: Store, dataset: str) -> DatasetUsers | None:
    """Of a dataset (its digest) whose snapshot expired, where they were recorded."""
    return store.read(_name(dataset), DatasetUsers)


def record_dataset_users(store: Store, lake: Lake) -> None:
    """Record the users of each dataset, before its snapshot expires. The current snapshot does not."""
    for window in windows(store):
        past = window.snapshot not in ("", lake.snapshot) and lake.has(window.snapshot)
        if not past or store.path(_name(window.digest)).exists():
            continue
        newest: dict[str, datetime] = {}
        for batch in lake.batches(window.days, window.snapshot, ["user_id", "timestamp"], where(window.scope)):
            rows: Any = pa.table(batch).group_by("user_id").aggregate([("timestamp", "max")]).to_pylist()
            for user, at in ((row["user_id"], row["timestamp_max"]) for row in rows if row["user_id"] is not None):
                newest[user] = max(newest[user], at) if user in newest else at
        key = bind(store)
        marked = {key.mark(user_hash(user)): at for user, at in newest.items()}
        store.write(_name(window.digest), DatasetUsers(newest=marked))


def _name(dataset: str) -> str:
    return f"{layout.DATASET_USERS}/{dataset}.json"
