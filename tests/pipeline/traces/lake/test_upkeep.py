from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipeline.core.storage import Store
from pipeline.traces.lake import LakeConfig, local_lake, open_lake
from pipeline.traces.lake.files import path_of, write_files
from pipeline.traces.retention import upkeep

from .lakes import DAY, batch, ids, put, row


def files(config: LakeConfig) -> int:
    return sum(path.is_file() for path in Path(path_of(config.location)).rglob("*"))


@pytest.mark.slow
def test_upkeep_compacts_expires_and_frees_the_disk(tmp_path: Path) -> None:
    config = local_lake(Store(tmp_path))
    done = upkeep(config, 30, datetime.now(UTC), lambda line: None, grace_s=0)
    assert (done.compacted.days, done.expired, done.swept.files) == ((), (), 0)
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(0)], "older")
        small = [uri for n in range(3) for uri in write_files(config, DAY, "x", [batch([row(n)])])]
        lake.replace_day(DAY, small, "a")
        kept = lake.snapshot
    write_files(config, DAY, "of a commit in flight", [batch([row(9)])])
    lines: list[str] = []
    later = datetime.now(UTC) + timedelta(days=31)
    done = upkeep(config, 30, later, lines.append, keep=[kept])
    assert (done.compacted.files_before, done.compacted.files_after, len(done.expired)) == (3, 1, 1)
    assert done.swept.files == 3, "the data that the expired snapshot alone had, its manifest and its list"
    assert len(lines) == 3
    before = files(config)
    done = upkeep(config, 30, later, lines.append)
    assert (done.compacted.days, len(done.expired)) == ((), 1)
    assert done.swept.files >= 3 + 1 and done.swept.bytes > 0
    # Expiring is a commit too: one new metadata file.
    assert files(config) == before + 1 - done.swept.files
    with open_lake(config) as lake:
        assert ids(lake, DAY) == ["t0", "t1", "t2"] and not lake.has(kept)
    assert upkeep(config, 30, later, lines.append).swept.files == 0
    assert upkeep(config, 30, later, lines.append, grace_s=0).swept.files == 1
