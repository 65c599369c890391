"""Deletes the files below the governed table that no retained snapshot names; in a bucket also old versions of objects
and incomplete uploads. Raises OSError, and deletes nothing, where the metadata cannot be read."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.core.storage import Record
from pipeline.traces.lake.files import path_of
from pipeline.traces.lake_config import LakeConfig, located

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

KEYS_PER_REQUEST = 1000
"""Objects that S3 deletes in one request at most."""


class SweepResult(Record):
    files: int = 0
    bytes: int = 0
    uploads: int = 0
    """Incomplete multipart uploads that were aborted."""


class StoredFile(NamedTuple):
    path: str
    bytes: int
    modified: float
    """Seconds since 1970."""
    version: str = ""


def sweep(config: LakeConfig, table: Table, expired: set[str], grace_s: float) -> SweepResult:
    """Delete unreachable files that an `expired` snapshot named (`paths_of`) or that are older than `grace_s`."""
    before = time.time() - grace_s
    with _bucket(config) as bucket:
        prefix = path_of(config.location).partition("/")[2] + "/"
        # Listed first: a file that is committed meanwhile is reachable by the time the metadata is read.
        stored_files = _stored(config, bucket, prefix)
        table.refresh()
        keep = _metadata_paths(config, table) | paths_of(config, table, table.metadata.snapshots)
        garbage = [f for f in stored_files if f.path not in keep and (f.modified <= before or f.path in expired)]
        uploads = 0
        if bucket is None:
            for file in garbage:
                Path(file.path).unlink()
        else:
            _delete(bucket, garbage)
            for upload in bucket.multipart_uploads.filter(Prefix=prefix):
                if upload.initiated.timestamp() <= before:
                    upload.abort()
                    uploads += 1
    return SweepResult(files=len(garbage), bytes=sum(f.bytes for f in garbage), uploads=uploads)


def paths_of(config: LakeConfig, table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Paths of the snapshots' manifests and data files, where they lie now."""
    paths: set[str] = set()
    for snapshot in snapshots:
        paths.add(_path(config, snapshot.manifest_list))
        for manifest in snapshot.manifests(table.io):
            path = _path(config, manifest.manifest_path)
            if path not in paths:
                paths.add(path)
                entries = manifest.fetch_manifest_entry(table.io)
                paths.update(_path(config, entry.data_file.file_path) for entry in entries)
    return paths


def _metadata_paths(config: LakeConfig, table: Table) -> set[str]:
    metadata = table.metadata
    names = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    names.update(s.statistics_path for s in (*metadata.statistics, *metadata.partition_statistics))
    return {_path(config, name) for name in names}


def _path(config: LakeConfig, name: str) -> str:
    return path_of(located(name, config.location) if config.movable else name)


def _stored(config: LakeConfig, bucket: Any, prefix: str) -> list[StoredFile]:
    """The files of a directory; of a bucket every version of every object, and the markers of deleted ones."""
    if bucket is None:
        found = [(path, path.stat()) for path in Path(path_of(config.location)).rglob("*") if path.is_file()]
        return [StoredFile(str(path), stat.st_size, stat.st_mtime) for path, stat in found]
    return [
        StoredFile(f"{bucket.name}/{v.object_key}", v.size or 0, v.last_modified.timestamp(), v.id)
        for v in bucket.object_versions.filter(Prefix=prefix)
    ]


@contextmanager
def _bucket(config: LakeConfig) -> Generator[Any]:
    """The warehouse's bucket through boto3, as PyArrow knows neither versions nor uploads; None for a directory."""
    if not config.warehouse.startswith("s3://"):
        yield None
        return
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    options = config.options
    s3: Any = boto3.resource(
        "s3",
        region_name=options["s3.region"],
        endpoint_url=options.get("s3.endpoint"),
        aws_access_key_id=options.get("s3.access-key-id"),
        aws_secret_access_key=options.get("s3.secret-access-key"),
        aws_session_token=options.get("s3.session-token"),
    )
    try:
        yield s3.Bucket(path_of(config.location).partition("/")[0])
    except (BotoCoreError, ClientError) as error:
        raise OSError(
            f"{config.location} could not be swept ({error}). The sweep needs s3:ListBucketVersions, "
            "s3:DeleteObjectVersion, s3:ListBucketMultipartUploads and s3:AbortMultipartUpload; grant them."
        ) from error


def _delete(bucket: Any, garbage: Sequence[StoredFile]) -> None:
    for start in range(0, len(garbage), KEYS_PER_REQUEST):
        some = garbage[start : start + KEYS_PER_REQUEST]
        objects = [{"Key": file.path.removeprefix(f"{bucket.name}/"), "VersionId": file.version} for file in some]
        if errors := bucket.delete_objects(Delete={"Objects": objects, "Quiet": True}).get("Errors"):
            raise OSError(f"s3://{bucket.name}: {len(errors)} objects not deleted, one for {errors[0]['Code']}.")
