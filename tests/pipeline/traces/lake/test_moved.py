"""A table whose folder was moved or copied: it is the same table, and knows nothing of where it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyiceberg.table import Table

from pipeline.core.storage import Store
from pipeline.traces.lake import LakeConfig, local_lake, open_lake
from pipeline.traces.lake.catalogue import open_table
from pipeline.traces.lake.files import path_of

from .lakes import DAY, NEXT_DAY, ids, put, row

pytestmark = pytest.mark.slow


def filled(root: Path) -> tuple[LakeConfig, str]:
    """A table of two days, one of them replaced since; and the snapshot before that."""
    config = local_lake(Store(root))
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(1, user_id="ann"), row(2, user_id="bob")], "one")
        before = lake.snapshot
        put(lake, config, NEXT_DAY, [row(3, NEXT_DAY, user_id="ann")], "two")
        put(lake, config, DAY, [row(4, user_id="ann"), row(5, user_id="bob")], "three")
    return config, before


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_moved_table_goes_on(tmp_path: Path) -> None:
    _, before = filled(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    config = local_lake(Store(tmp_path / "new"))
    with open_lake(config) as lake:
        assert sorted(ids(lake, DAY, NEXT_DAY)) == ["t3", "t4", "t5"]
        assert sorted(ids(lake, DAY, snapshot=before)) == ["t1", "t2"]
        assert lake.digests() == {DAY: "three", NEXT_DAY: "two"}
        put(lake, config, NEXT_DAY, [row(6, NEXT_DAY)], "four")
        assert sorted(ids(lake, DAY, NEXT_DAY)) == ["t4", "t5", "t6"]
    assert not (tmp_path / "old").exists()


def test_a_copy_never_touches_its_original(tmp_path: Path) -> None:
    filled(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    original = contents(tmp_path / "old")
    config = local_lake(Store(tmp_path / "new"))
    with open_lake(config) as lake:
        assert all(path_of(uri).startswith(f"{tmp_path}/new/") for uri in lake.files([DAY], lake.snapshot))
        lake.erase(["ann"], None, {DAY: "five", NEXT_DAY: "six"})
        lake.compact()
        assert lake.expire(None)
        assert lake.sweep(0).files > 4
        assert ids(lake, DAY, NEXT_DAY) == ["t5"]
        assert lake.sweep(0).files == 0
    assert contents(tmp_path / "old") == original
    with open_lake(local_lake(Store(tmp_path / "old"))) as lake:
        assert sorted(ids(lake, DAY, NEXT_DAY)) == ["t3", "t4", "t5"]


def test_the_metadata_does_not_say_where_it_lies(tmp_path: Path) -> None:
    config, _ = filled(tmp_path / "here")
    place = str(tmp_path).encode()
    assert [name for name, content in contents(tmp_path).items() if place in content] == []
    with open_table(config) as table:  # Avro packs its blocks
        assert names(table)
        assert [name for name in names(table) if str(tmp_path) in name] == []


def test_half_a_copy_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "new", ignore=shutil.ignore_patterns("*.metadata.json"))
    with pytest.raises(ValueError, match="copy the whole folder"), open_lake(local_lake(Store(tmp_path / "new"))):
        pass


def names(table: Table) -> set[str]:
    """All that the table's metadata calls a file."""
    by_name = {table.location(), table.metadata_location}
    by_name |= {entry.metadata_file for entry in table.metadata.metadata_log}
    for snapshot in table.snapshots():
        by_name.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            by_name.add(manifest.manifest_path)
            by_name |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    return by_name
