"""The governed table's housekeeping: few files instead of many, old snapshots forgotten, their files deleted.

Owns the order of the three. Refuses to delete a row: retention and erasure do, and upkeep then frees the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta

from pipeline.core.storage import Record
from pipeline.traces.lake import Compacted, LakeConfig, SweepResult, open_lake

GRACE_S = 24 * 3600
"""Files that no snapshot ever named and that are younger than this may belong to a commit in flight."""


class Upkeep(Record):
    """What one upkeep did."""

    at: datetime
    compacted: Compacted
    expired: tuple[str, ...]
    """Ids of the snapshots that can no longer be read."""
    swept: SweepResult


def upkeep(
    config: LakeConfig,
    keep_snapshots_days: int,
    now: datetime,
    log: Callable[[str], None],
    keep: Collection[str] = (),
    grace_s: float = GRACE_S,
) -> Upkeep:
    """Compact, expire what is older than `keep_snapshots_days` but the snapshots `keep`, and sweep.

    Raises OSError when the warehouse or the catalogue fails; each of the three that is done stays done.
    """
    with open_lake(config) as lake:
        compacted = lake.compact()
        log(f"compacted {compacted.files_before} files of {len(compacted.days)} days into {compacted.files_after}")
        expired = lake.expire(now - timedelta(days=keep_snapshots_days), keep)
        log(f"expired {len(expired)} snapshots older than {keep_snapshots_days} days")
        swept = lake.sweep(grace_s)
        log(f"swept {swept.files} files of {swept.bytes} bytes, aborted {swept.uploads} uploads")
    return Upkeep(at=now, compacted=compacted, expired=tuple(expired), swept=swept)
