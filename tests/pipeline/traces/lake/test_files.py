from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.core.storage import Store
from pipeline.traces.lake import LakeConfig, files, local_lake
from pipeline.traces.lake.files import count_rows, path_of, read_files, write_file

from .lakes import DAY, batch, row, written

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path: Path) -> LakeConfig:
    return local_lake(Store(tmp_path))


def test_row_groups_are_bounded(config: LakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_BYTES", 50_000)
    rows = [row(n, completion=f"{n}" * 10) for n in range(3000)]
    uris = write_file(config, DAY, "x", (batch(rows[n : n + 100]) for n in range(0, 3000, 100)))
    metadata = pq.read_metadata(path_of(uris[0]))
    assert len(uris) == 1 and all(metadata.row_group(i).num_rows < 400 for i in range(metadata.num_row_groups))
    assert [r["trace_id"] for b in read_files(config, uris) for r in b.to_pylist()] == [f"t{n}" for n in range(3000)]


def test_files_are_new_in_every_call_and_never_empty(config: LakeConfig) -> None:
    assert write_file(config, DAY, "x", []) == write_file(config, DAY, "x", [batch([])]) == []
    assert len({*written(config, DAY, [row(1)]), *written(config, DAY, [row(1), row(1, model="n")])}) == 3


def test_rows_are_counted_where_they_are(config: LakeConfig) -> None:
    uris = written(config, DAY, [row(1, user_id="x"), row(2, model="n"), row(3, model="n")])
    assert sum(count_rows(config, uris, pc.field("user_id").isin(["x"])).values()) == 1
    assert sum(count_rows(config, uris, ~pc.field("user_id").isin(["x"])).values()) == 2
