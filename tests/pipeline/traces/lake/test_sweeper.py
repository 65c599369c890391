import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from pipeline.core.storage import Store
from pipeline.traces.lake import Lake, LakeConfig, local_lake, open_lake
from pipeline.traces.lake.files import filesystem, path_of, write_files
from pipeline.traces.lake_config import named
from pipeline.traces.retention import upkeep

from .lakes import DAY, NEXT_DAY, batch, ids, put, row

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
        stray = write_files(config, DAY, "stray", [batch([row(4)])])
        before = contents(config)
        assert lake.sweep(3600) == lake.sweep(3600)
        assert contents(config) == before
        swept = lake.sweep(0)
        assert swept.files == 1 and path_of(stray[0]) not in contents(config)
        assert swept.bytes == len(before[path_of(stray[0])])
        assert ids(lake, DAY, snapshot=old) == ["t1"]
        assert len(lake.expire(None)) == 2
        in_flight = write_files(config, DAY, "in-flight", [batch([row(5)])])
        swept = lake.sweep(3600)
        assert swept.files == sum(f not in contents(config) for f in before) - 1 and swept.files > 2
        assert ids(lake, DAY, NEXT_DAY) == ["t2", "t3"]
        lake.replace_day(DAY, in_flight, "d")
        assert ids(lake, DAY, NEXT_DAY) == ["t5", "t3"]
        assert lake.sweep(0).files == 0
    with open_lake(config) as again:
        assert ids(again, DAY, NEXT_DAY) == ["t5", "t3"]


def test_what_cannot_be_read_deletes_nothing(config: LakeConfig) -> None:
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(1)], "a")
        write_files(config, DAY, "stray", [batch([row(4)])])
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
        files = [*write_files(config, DAY, "x", [batch([row(1), row(2, **theirs)])])]
        files += write_files(config, DAY, "x", [batch([row(3, **theirs, model="other")])])
        lake.replace_day(DAY, files, "a")
        put(lake, config, NEXT_DAY, [row(4, NEXT_DAY, user_id="zoe")], "b")
        lake.compact()
        assert any(user in text for text in decoded(config, lake))
        lake.erase([user], None, {DAY: "a2"})
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


def test_an_upload_that_was_never_completed_is_aborted(bucket: str, tmp_path: Path) -> None:
    config = on_s3(bucket, f"sqlite:///{tmp_path}/catalog.db")
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(1)], "a")
        for key in ("a/b/governed/traces/data/x.parquet", "another/x.parquet"):
            s3_client().create_multipart_upload(Bucket=bucket, Key=key)
        assert lake.sweep(0).uploads == 1
        (left,) = s3_client().list_multipart_uploads(Bucket=bucket)["Uploads"]
        assert left["Key"] == "another/x.parquet" and ids(lake, DAY) == ["t1"]


def test_where_versions_are_kept_the_old_ones_go_too(bucket: str, tmp_path: Path) -> None:
    s3_client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    config = on_s3(bucket, f"sqlite:///{tmp_path}/catalog.db")
    with open_lake(config) as lake:
        (file,) = put(lake, config, DAY, [row(1, user_id="x")], "a")
        other = write_files(config, DAY, "deleted already", [batch([row(2)])])
        s3_client().delete_object(Bucket=bucket, Key=path_of(other[0]).partition("/")[2])
        lake.erase(["x"], None, {DAY: "b"})
        lake.expire(None)
        lake.sweep(0)
        page = s3_client().list_object_versions(Bucket=bucket)
        left = {v["Key"] for v in (*page["Versions"], *page.get("DeleteMarkers", ()))}
        assert left == {path.partition("/")[2] for path in contents(config)}
        assert not any(path_of(uri).endswith(key) for uri in (file, *other) for key in left)


def test_another_prefix_of_the_bucket_is_not_touched(bucket: str, tmp_path: Path) -> None:
    config = on_s3(bucket, f"sqlite:///{tmp_path}/catalog.db")
    for key in ("a/b/governed/traces2/x", "a/b/governed/other", "z"):
        s3_client().put_object(Bucket=bucket, Key=key, Body=b"1")
    with open_lake(config) as lake:
        put(lake, config, DAY, [row(1)], "a")
        assert lake.sweep(0).files == 0
    assert sum("governed/traces/" not in path for path in contents(config)) == 2


def count_files(config: LakeConfig) -> int:
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
    before = count_files(config)
    done = upkeep(config, 30, later, lines.append)
    assert (done.compacted.days, len(done.expired)) == ((), 1)
    assert done.swept.files >= 3 + 1 and done.swept.bytes > 0
    # Expiring is a commit too: one new metadata file.
    assert count_files(config) == before + 1 - done.swept.files
    with open_lake(config) as lake:
        assert ids(lake, DAY) == ["t0", "t1", "t2"] and not lake.has(kept)
    assert upkeep(config, 30, later, lines.append).swept.files == 0
    assert upkeep(config, 30, later, lines.append, grace_s=0).swept.files == 1
