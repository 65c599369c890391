import os
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from pipeline.core.objects import kept_versions
from pipeline.traces.lake import Lake, LakeConfig, open_lake
from pipeline.traces.lake.files import filesystem, path_of
from pipeline.traces.lake_config import named

from .lakes import DAY, NEXT_DAY, ids, of, put, row, written

pytestmark = pytest.mark.slow


@pytest.fixture(params=["local", "s3"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> LakeConfig:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    if request.param == "local":
        return LakeConfig(catalogue="sqlite", uri=uri, warehouse=f"file://{tmp_path}/w")
    return on_s3(request.getfixturevalue("bucket"), uri)


def on_s3(bucket: str, uri: str) -> LakeConfig:
    """Keys and endpoint in the properties alone, as a deployment may give them."""
    properties = {
        "s3.endpoint": os.environ["AWS_ENDPOINT_URL"],
        "s3.access-key-id": "test",
        "s3.secret-access-key": "test",
        "s3.region": "us-east-1",
    }
    return LakeConfig(catalogue="sqlite", uri=uri, warehouse=f"s3://{bucket}/a/b", properties=properties)


def contents(config: LakeConfig) -> dict[str, bytes]:
    """Path to bytes of all that is in the warehouse."""
    from pyarrow.fs import FileSelector, FileType

    files: Any = filesystem(config)
    infos = files.get_file_info(FileSelector(path_of(config.warehouse), recursive=True))
    return {i.path: files.open_input_file(i.path).read() for i in infos if i.type == FileType.File}


def s3_client() -> Any:
    import boto3

    return boto3.client("s3")


def test_only_what_no_snapshot_reaches_is_deleted(config: LakeConfig) -> None:
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(1)], "a")
        old = lake.snapshot
        put(lake, config, DAY, [row(2)], "b")
        put(lake, config, NEXT_DAY, [row(3, NEXT_DAY)], "c")
        stray = written(config, DAY, [row(4)])
        before = contents(config)
        assert lake.sweep(3600) == lake.sweep(3600)
        assert contents(config) == before
        swept = lake.sweep(0)
        assert swept.files == 1 and path_of(stray[0]) not in contents(config)
        assert swept.bytes == len(before[path_of(stray[0])])
        assert ids(lake, DAY, snapshot=old) == ["t1"]
        assert len(lake.expire(None)) == 2
        assert lake.sweep(3600).files == 0
        swept = lake.sweep(0)
        assert swept.files == sum(f not in contents(config) for f in before) - 1 and swept.files > 2
        in_flight = written(config, DAY, [row(5)])
        assert ids(lake, DAY, NEXT_DAY) == ["t2", "t3"]
        lake.replace_day(DAY, in_flight, "d")
        assert ids(lake, DAY, NEXT_DAY) == ["t5", "t3"]
        assert lake.sweep(0).files == 0
    with open_lake(config) as again:
        assert ids(again, DAY, NEXT_DAY) == ["t5", "t3"]


def test_what_cannot_be_read_deletes_nothing(config: LakeConfig) -> None:
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(1)], "a")
        written(config, DAY, [row(4)])
        lake._table.io.delete(lake._table.current_snapshot().manifest_list)
        before = contents(config)
        with pytest.raises(OSError):
            lake.sweep(0)
        assert contents(config) == before


def test_an_erased_user_is_in_no_byte_that_is_left(config: LakeConfig) -> None:
    """Parquet and Avro are compressed: every file is decoded too, bounds, deleted entries and all."""
    user, words = "jane-7f3c", "the heron sings at noon"
    theirs = {"user_id": user, "completion": words, "session_id": f"{user}-s", "metadata": f'{{"name": "{user}"}}'}
    with open_lake(config) as lake:
        files = written(config, DAY, [row(1), row(2, **theirs), row(3, **theirs, model="other")])
        lake.replace_day(DAY, files, "a")
        put(lake, config, NEXT_DAY, [row(4, NEXT_DAY, user_id="zoe")], "b")
        assert any(user in text for text in decoded(config, lake))
        lake.erase(of(user), {DAY: "a2"})
        lake.expire(None)
        lake.sweep(0)
        texts = decoded(config, lake)
        assert len(texts) > 6 and any("zoe" in text for text in texts)
        assert not [text for text in texts if user in text or words in text]
        assert ids(lake, DAY, NEXT_DAY) == ["t1", "t4"]
    for path, content in contents(config).items():
        assert user.encode() not in content and words.encode() not in content, path


def decoded(config: LakeConfig, lake: Lake) -> list[str]:
    """Every file of the warehouse as text."""
    from pyiceberg.manifest import read_manifest_list

    io, texts, read = lake._table.io, list[str](), set[str]()
    for path, content in contents(config).items():
        if path.endswith(".parquet"):
            texts.append(str(ds.dataset(path, filesystem=filesystem(config)).to_table().to_pylist()))
        elif path.endswith(".json"):
            texts.append(content.decode())
        elif Path(path).name.startswith("snap-"):
            uri = f"{config.warehouse.partition('//')[0]}//{path}"
            name = named(uri, config.location) if config.movable else uri
            for manifest in read_manifest_list(io.new_input(name)):
                read.add(Path(manifest.manifest_path).name)
                texts.append(f"{manifest} {manifest.partitions}")
                for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
                    texts.append(f"{entry} {entry.data_file.lower_bounds} {entry.data_file.upper_bounds}")
    present = {Path(path).name for path in contents(config)}
    assert read == {name for name in present if name.endswith(".avro") and not name.startswith("snap-")}
    return texts


def test_a_bucket_that_keeps_versions_is_known(bucket: str, tmp_path: Path) -> None:
    assert kept_versions(f"s3://{bucket}/lake") == kept_versions(f"file://{tmp_path}") == ""
    s3_client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert "the bucket keeps versions" in kept_versions(f"s3://{bucket}/lake")
    assert "is unknown" in kept_versions("memory://lake")


def test_another_prefix_of_the_bucket_is_not_touched(bucket: str, tmp_path: Path) -> None:
    config = on_s3(bucket, f"sqlite:///{tmp_path}/catalog.db")
    for key in ("a/b/governed/traces2/x", "a/b/governed/other", "z"):
        s3_client().put_object(Bucket=bucket, Key=key, Body=b"1")
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(1)], "a")
        assert lake.sweep(0).files == 0
    assert sum("governed/traces/" not in path for path in contents(config)) == 2
