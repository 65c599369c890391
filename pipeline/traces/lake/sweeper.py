"""Deletion, for good, of the files under the governed table that no retained snapshot reaches.

Owns what counts as reachable, and on S3 also the old versions of an object and uploads that were never completed.
Refuses to expire snapshots: `Lake.expire` does. What it cannot read it deletes nothing for.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.core.storage import Record
from pipeline.traces.lake.catalogue import LakeConfig
from pipeline.traces.lake.files import filesystem, path_of
from pipeline.traces.lake_names import located

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

SHOWN = 20
KEYS_PER_REQUEST = 1000


class SweepResult(Record):
    """What a sweep deleted. `paths`: the first 20."""

    files: int = 0
    bytes: int = 0
    uploads: int = 0
    """Incomplete multipart uploads that were aborted."""
    paths: tuple[str, ...] = ()


def sweep(config: LakeConfig, table: Table, grace_s: float) -> SweepResult:
    """Delete the unreachable files that a snapshot once named, or that are older than `grace_s`.

    Raises OSError when reading, listing or deleting fails.
    """
    warehouse = _Bucket(config) if config.warehouse.startswith("s3://") else _Directory(config)
    before = time.time() - grace_s
    # Listed first: what is committed while this runs is reachable by the time it is looked for.
    stored_files = warehouse.list_files()
    table.refresh()
    reach = _ReferencedPaths(config, table)
    keep = reach.now()
    once = reach.once({file.path for file in stored_files})
    garbage = [f for f in stored_files if f.path not in keep and (f.modified <= before or f.path in once)]
    # Data goes before the manifests that name it: a sweep that breaks off can be resumed.
    warehouse.delete(sorted(garbage, key=lambda file: _rank(file.path)))
    return SweepResult(
        files=len(garbage),
        bytes=sum(file.bytes for file in garbage),
        uploads=warehouse.abort_uploads(before),
        paths=tuple(file.path for file in garbage[:SHOWN]),
    )


class _ReferencedPaths:
    """Paths of the files that the table's metadata names, where they lie now."""

    def __init__(self, config: LakeConfig, table: Table) -> None:
        self._config, self._table = config, table

    def now(self) -> set[str]:
        """All that the table is made of: metadata, its snapshots' manifests and data, statistics."""
        metadata = self._table.metadata
        named = {self._table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
        named.update(s.statistics_path for s in (*metadata.statistics, *metadata.partition_statistics))
        return {self._path(name) for name in named} | self._of(metadata.snapshots)

    def once(self, present: set[str]) -> set[str]:
        """What expired snapshots named, as the table's former metadata tells: no commit in flight has those."""
        from pyiceberg.serializers import FromInputFile

        metadata = self._table.metadata
        retained = {snapshot.snapshot_id for snapshot in metadata.snapshots}
        expired: dict[int, Snapshot] = {}
        for entry in metadata.metadata_log:
            if self._path(entry.metadata_file) in present:
                former = FromInputFile.table_metadata(self._table.io.new_input(entry.metadata_file))
                expired.update({s.snapshot_id: s for s in former.snapshots if s.snapshot_id not in retained})
        return self._of([s for s in expired.values() if self._path(s.manifest_list) in present], present)

    def _of(self, snapshots: Iterable[Snapshot], present: set[str] | None = None) -> set[str]:
        """The snapshots' manifests and data. `present`: manifests not in it are gone, and so is their data."""
        paths: set[str] = set()
        for snapshot in snapshots:
            paths.add(self._path(snapshot.manifest_list))
            for manifest in snapshot.manifests(self._table.io):
                path = self._path(manifest.manifest_path)
                if path not in paths and (present is None or path in present):
                    paths.add(path)
                    entries = manifest.fetch_manifest_entry(self._table.io)
                    paths.update(self._path(entry.data_file.file_path) for entry in entries)
        return paths

    def _path(self, name: str) -> str:
        return path_of(located(name, self._config.location) if self._config.movable else name)


def _rank(path: str) -> int:
    name = path.rpartition("/")[2]
    return 2 if name.startswith("snap-") else int(name.endswith(".avro"))


class _StoredFile(NamedTuple):
    path: str
    bytes: int
    modified: float
    """Seconds since 1970."""
    version: str = ""


class _Directory:
    def __init__(self, config: LakeConfig) -> None:
        self._files = filesystem(config)
        self._path = path_of(config.location)

    def list_files(self) -> list[_StoredFile]:
        from pyarrow.fs import FileSelector, FileType

        infos = self._files.get_file_info(FileSelector(self._path, recursive=True, allow_not_found=True))
        return [_StoredFile(i.path, i.size, i.mtime.timestamp()) for i in infos if i.type == FileType.File]

    def delete(self, garbage: Sequence[_StoredFile]) -> None:
        for file in garbage:
            self._files.delete_file(file.path)

    def abort_uploads(self, before: float) -> int:
        return 0


class _Bucket:
    """Through boto3 with PyIceberg's settings: PyArrow knows neither versions nor uploads."""

    def __init__(self, config: LakeConfig) -> None:
        import boto3

        options = config.options
        self._bucket, _, key = path_of(config.location).partition("/")
        self._prefix = key + "/"
        self._client: Any = boto3.client(
            "s3",
            region_name=options["s3.region"],
            endpoint_url=options.get("s3.endpoint"),
            aws_access_key_id=options.get("s3.access-key-id"),
            aws_secret_access_key=options.get("s3.secret-access-key"),
            aws_session_token=options.get("s3.session-token"),
        )

    def list_files(self) -> list[_StoredFile]:
        """Every version of every object, and the markers of deleted ones: where versions are kept, deleting hides."""
        stored_files: list[_StoredFile] = []
        for page in self._pages("list_object_versions"):
            for version in (*page.get("Versions", ()), *page.get("DeleteMarkers", ())):
                path, modified = f"{self._bucket}/{version['Key']}", version["LastModified"].timestamp()
                stored_files.append(_StoredFile(path, version.get("Size", 0), modified, version["VersionId"]))
        return stored_files

    def delete(self, garbage: Sequence[_StoredFile]) -> None:
        for start in range(0, len(garbage), KEYS_PER_REQUEST):
            objects = [
                {"Key": file.path.removeprefix(self._bucket + "/"), "VersionId": file.version}
                for file in garbage[start : start + KEYS_PER_REQUEST]
            ]
            with self._named_errors("delete_objects"):
                answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})
            if errors := answer.get("Errors"):
                raise OSError(f"s3://{self._bucket}: {len(errors)} objects not deleted, one for {errors[0]['Code']}.")

    def abort_uploads(self, before: float) -> int:
        """A killed writer's parts are on no list of objects, and are paid for until the upload is aborted."""
        uploads = [u for page in self._pages("list_multipart_uploads") for u in page.get("Uploads", ())]
        old = [upload for upload in uploads if upload["Initiated"].timestamp() <= before]
        for upload in old:
            with self._named_errors("abort_multipart_upload"):
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        return len(old)

    def _pages(self, operation: str) -> Iterator[dict[str, Any]]:
        with self._named_errors(operation):
            yield from self._client.get_paginator(operation).paginate(Bucket=self._bucket, Prefix=self._prefix)

    @contextmanager
    def _named_errors(self, operation: str) -> Generator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise OSError(
                f"s3://{self._bucket}: {operation} failed ({error}). The sweep needs s3:ListBucketVersions, "
                "s3:DeleteObjectVersion, s3:ListBucketMultipartUploads and s3:AbortMultipartUpload; grant them."
            ) from error
