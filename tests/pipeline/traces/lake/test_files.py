import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.core.storage import Store
from pipeline.traces.lake import LakeConfig, files, local_lake
from pipeline.traces.lake.files import count_rows, path_of, read_files, write_files

from .lakes import DAY, ROOT, batch, row

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path: Path) -> LakeConfig:
    return local_lake(Store(tmp_path))


def written(config: LakeConfig) -> set[str]:
    folder = Path(path_of(config.location)) / "data"
    return {f"file://{path}" for path in folder.rglob("*") if path.is_file()}


MODELS = st.sampled_from(["a", "b", "c/d", "", "é\n", "e", "f", "g", "h", "i", "j", "k"])


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.lists(st.tuples(MODELS, st.booleans()), max_size=12), max_size=5), budget=st.integers(1, 9000)
)
def test_files_hold_every_row_once_and_one_partition_each(
    config: LakeConfig, batches: list[list[tuple[str, bool]]], budget: int
) -> None:
    """Whatever the order of models, and however little may wait in memory."""
    number, given_batches, wanted = 0, [], []
    for rows in batches:
        created = [row(number + n, model=model, consent=consent) for n, (model, consent) in enumerate(rows)]
        number += len(created)
        wanted += created
        given_batches.append(batch(created))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BUFFER_BYTES", budget)
        patch.setattr(files, "OPEN_FILES", 3)
        uris = write_files(config, DAY, "x", given_batches)
    rows = [r for b in read_files(config, uris) for r in b.to_pylist()]
    assert sorted(rows, key=lambda r: int(r["trace_id"][1:])) == wanted
    for uri in uris:
        partitions = pq.read_table(path_of(uri), columns=["model", "consent"]).to_pylist()
        assert partitions and all(p == partitions[0] for p in partitions)


def test_a_large_file_is_cut_and_its_row_groups_are_bounded(
    config: LakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_BYTES", 50_000)
    monkeypatch.setattr(files, "FILE_BYTES", 4_000)
    rows = [row(n, completion=f"{n}" * 10) for n in range(3000)]
    uris = write_files(config, DAY, "x", [batch(rows[:500]), batch(rows[500:1200]), batch(rows[1200:])])
    assert len(uris) > 1
    for uri in uris:
        metadata = pq.read_metadata(path_of(uri))
        assert all(metadata.row_group(i).num_rows < 400 for i in range(metadata.num_row_groups))
    assert [r["trace_id"] for b in read_files(config, uris) for r in b.to_pylist()] == [f"t{n}" for n in range(3000)]


def test_names_are_safe_and_new_in_every_call(config: LakeConfig) -> None:
    assert write_files(config, DAY, "x", []) == write_files(config, DAY, "x", [batch([])]) == []
    for name in ("../../x", "", "a b\n'é'", "n" * 500):
        write_files(config, DAY, name, [batch([row(1)])])
    result = written(config)
    assert len(result) == 4 and all(f"/data/{DAY}/" in uri and len(Path(uri).name) < 120 for uri in result)


def test_rows_are_counted_where_they_are(config: LakeConfig) -> None:
    uris = write_files(config, DAY, "x", [batch([row(1, user_id="x"), row(2, model="n"), row(3, model="n")])])
    assert sum(count_rows(config, uris, pc.field("user_id").isin(["x"])).values()) == 1
    assert sum(count_rows(config, uris, ~pc.field("user_id").isin(["x"])).values()) == 2


def test_a_source_that_fails_half_way_leaves_no_file(config: LakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BUFFER_BYTES", 1)

    def broken() -> Iterator[pa.RecordBatch]:
        yield batch([row(1)])
        assert written(config)
        raise OSError("the source went away")

    with pytest.raises(OSError, match="went away"):
        write_files(config, DAY, "x", broken())
    assert not written(config)


def test_opening_the_module_loads_no_pyiceberg() -> None:
    loaded = "print([m for m in sys.modules if 'iceberg' in m])"
    check = f"import sys, pipeline.traces.retention; {loaded}"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
