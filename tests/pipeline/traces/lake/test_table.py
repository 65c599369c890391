import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.core.storage import Store
from pipeline.traces.lake import LakeConfig, local_lake, open_lake
from pipeline.traces.lake.files import path_of
from pipeline.traces.rows import SCHEMA

from .lakes import DAY, NEXT_DAY, ids, of, put, row, written

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path: Path) -> LakeConfig:
    return local_lake(Store(tmp_path / "store with space"))


def test_a_day_is_replaced_and_its_neighbours_stay(config: LakeConfig) -> None:
    with open_lake(config) as lake:
        assert (lake.snapshot, lake.digests()) == ("", {})
        put(lake, config, DAY, [row(1), row(2)], "a")
        put(lake, config, NEXT_DAY, [row(3, NEXT_DAY)], "b")
        before = lake.snapshot
        put(lake, config, DAY, [row(4)], "c")
        assert ids(lake, DAY, NEXT_DAY) == ["t4", "t3"]
        assert ids(lake, DAY, NEXT_DAY, snapshot=before) == ["t1", "t2", "t3"]
        assert lake.digests() == {DAY: "c", NEXT_DAY: "b"}
    with open_lake(config) as again:
        assert ids(again, DAY) == ["t4"]
        again.replace_day(DAY, [], "d")
        assert ids(again, DAY) == []
        again.replace_day(DAY, [], "e")
        assert again.digests()[DAY] == "e"


def test_rows_come_back_whatever_the_model_is_called(config: LakeConfig) -> None:
    models = ["org/model:v1.0", "a b=c%2F&d?e#f", "../../up", "ü\n'\"", "None", " ", "", "long" * 2000, "long" * 2001]
    rows = [row(n, model=model, consent=n % 2 == 0) for n, model in enumerate(models)]
    with open_lake(config) as lake:
        put(lake, config, DAY, rows, "a")
        assert lake.read([DAY], lake.snapshot).to_pylist() == rows
        assert lake.read([DAY], lake.snapshot).schema.equals(SCHEMA)
        assert {task.file.partition[1] for task in lake._table.scan().plan_files()} == set(models)
        put(lake, config, DAY, rows[:1], "b")
        assert ids(lake, DAY) == ["t0"]
    folder = Path(path_of(config.location)) / "data" / DAY
    by_name = {path for path in folder.parents[4].rglob("*") if path.suffix == ".parquet"}
    assert by_name == set(folder.glob("*.parquet"))
    assert all(path.name.isascii() and "model" not in path.name for path in by_name)


def test_an_erasure_is_one_commit_over_all_days(config: LakeConfig) -> None:
    with open_lake(config) as lake:
        morning = datetime(2026, 1, 5, 1, tzinfo=UTC)
        put(lake, config, DAY, [row(1, user_id="x", timestamp=morning), row(2, user_id="x"), row(3, user_id="y")], "a")
        put(lake, config, NEXT_DAY, [row(4, NEXT_DAY, user_id="x"), row(5, NEXT_DAY)], "b")
        put(lake, config, "2026-01-07", [row(6, "2026-01-07", user_id="z")], "c")
        assert lake.count(of("x")) == {DAY: 2, NEXT_DAY: 1} and lake.count(of("nobody")) == {}
        commits, untouched = len(lake._table.snapshots()), lake.files(["2026-01-07"], lake.snapshot)
        noon = pa.scalar(datetime(2026, 1, 5, 12, tzinfo=UTC), SCHEMA.field("timestamp").type)
        lake.erase(of("x") & (pc.field("timestamp") >= noon), {DAY: "a2", NEXT_DAY: "b2"})
        assert len(lake._table.snapshots()) == commits + 1
        assert ids(lake, DAY, NEXT_DAY, "2026-01-07") == ["t1", "t3", "t5", "t6"]
        assert lake.digests() == {DAY: "a2", NEXT_DAY: "b2", "2026-01-07": "c"}
        assert lake.files(["2026-01-07"], lake.snapshot) == untouched
        lake.erase(of("x", "y"), {DAY: "a3"})
        assert ids(lake, DAY, NEXT_DAY, "2026-01-07") == ["t5", "t6"]


def test_an_expired_snapshot_says_what_to_do(config: LakeConfig) -> None:
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(1)], "a")
        first = lake.snapshot
        put(lake, config, DAY, [row(2)], "b")
        assert lake.expire(datetime(2020, 1, 1, tzinfo=UTC)) == []
        assert len(lake.expire(None)) >= 1 and (lake.has(first), lake.has(lake.snapshot)) == (False, True)
        with pytest.raises(ValueError, match="has expired; materialise"):
            lake.read([DAY], first)


def test_no_user_is_named_in_the_metadata(config: LakeConfig) -> None:
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(1, user_id="jane", completion="secret words", session_id="s-jane")], "a")
        (task,) = lake._table.scan().plan_files()
    bounds = {**task.file.lower_bounds, **task.file.upper_bounds}
    named = {lake._table.schema().find_column_name(field) for field in bounds}
    assert named == {"day", "model", "consent", "timestamp"}
    for path in Path(path_of(config.location)).rglob("metadata/*"):
        assert b"jane" not in path.read_bytes()
    assert pq.read_metadata(path_of(lake.files([DAY], lake.snapshot)[0])).row_group(0).column(0).compression == "ZSTD"


def test_a_broken_file_changes_nothing(config: LakeConfig) -> None:
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(1)], "a")
        (whole,) = written(config, DAY, [row(2)])
        path = Path(path_of(whole))
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises((OSError, pa.ArrowInvalid)):
            lake.replace_day(DAY, [whole], "b")
        path.unlink()
        with pytest.raises(OSError):
            lake.replace_day(DAY, [whole], "b")
        assert (ids(lake, DAY), lake.digests()) == (["t1"], {DAY: "a"})


def test_other_engines_read_columns_by_their_field_ids(config: LakeConfig) -> None:
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(1, tools="[]")], "a")
        (read,) = lake._table.scan(selected_fields=("trace_id", "tools", "messages")).to_arrow().to_pylist()
        assert read == {name: row(1, tools="[]")[name] for name in ("trace_id", "messages", "tools")}


def filled(root: Path) -> tuple[LakeConfig, str]:
    """A table of two days, one of them replaced since; and the snapshot before that."""
    config = local_lake(Store(root))
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(1, user_id="ann"), row(2, user_id="bob")], "one")
        before = lake.snapshot
        put(lake, config, NEXT_DAY, [row(3, NEXT_DAY, user_id="ann")], "two")
        put(lake, config, DAY, [row(4, user_id="ann"), row(5, user_id="bob")], "three")
    return config, before


def contents_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_copy_never_touches_its_original(tmp_path: Path) -> None:
    filled(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    original = contents_of(tmp_path / "old")
    config = local_lake(Store(tmp_path / "new"))
    with open_lake(config) as lake:
        assert all(path_of(uri).startswith(f"{tmp_path}/new/") for uri in lake.files([DAY], lake.snapshot))
        lake.erase(of("ann"), {DAY: "five", NEXT_DAY: "six"})
        assert lake.expire(None)
        assert lake.sweep(0).files > 4
        assert ids(lake, DAY, NEXT_DAY) == ["t5"]
        assert lake.sweep(0).files == 0
    assert contents_of(tmp_path / "old") == original
    with open_lake(local_lake(Store(tmp_path / "old"))) as lake:
        assert sorted(ids(lake, DAY, NEXT_DAY)) == ["t3", "t4", "t5"]


def test_half_a_copy_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "new", ignore=shutil.ignore_patterns("*.metadata.json"))
    with pytest.raises(ValueError, match="copy the whole folder"), open_lake(local_lake(Store(tmp_path / "new"))):
        pass
