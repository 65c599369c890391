"""Object stores that a run reads and writes: tried by one object of each kind that it will bring there, in seconds.
What a try wrote is gone when it returns, versions included; what a store does not delete is named."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pipeline.core.objects import fault, opened, paths_below
from pipeline.traces.lake.files import filesystem
from pipeline.traces.lake_config import LakeConfig

SMALL = b"Written by a try before a run; it may be deleted.\n"
PART = 5 << 20
"""Bytes of a part of an upload in parts, the smallest that S3 takes."""


def read_fault(uri: str) -> str:
    """Why no object below `uri`, a source's prefix, can be listed and read; "" when one can."""
    try:
        files, root = opened(uri, is_quick=True)
        if path := _first_object(files, root):
            files.cat_file(path, start=0, end=1)
    except Exception as error:  # the boundary of fsspec: each store raises its own exceptions
        return f"{uri} cannot be read: {fault(error)}"
    return "" if path else f"{uri} holds no object. Correct it, or export there first."


def _first_object(files: Any, root: str) -> str:
    """One that is not empty, below `root` or there, by one page of a listing; "" without any."""
    if "s3" in files.protocol:
        bucket, _, key = root.partition("/")
        page = files.call_s3("list_objects_v2", Bucket=bucket, Prefix=f"{key}/" if key else "", MaxKeys=100)
        below = (f"{bucket}/{each['Key']}" for each in page.get("Contents", ()) if each["Size"])
        return next(below, "") or (root if files.isfile(root) else "")
    below = (f"{folder}/{name}" for folder, _, names in files.walk(root) for name in names)
    return next(below, "") or next(iter(paths_below(files, root)), "")


def write_fault(uri: str) -> str:
    """Why checkpoints cannot be kept below `uri`, by fsspec as they will be; "" when they can."""
    return _tried(uri)


def lake_fault(config: LakeConfig) -> str:
    """Why the governed table cannot be kept in its bucket, by Arrow's own client as it will be; "" when it can."""
    from fsspec.implementations.arrow import ArrowFSWrapper

    return _tried(config.warehouse, lambda: ArrowFSWrapper(filesystem(config)))


def _tried(uri: str, client: Callable[[], Any] | None = None) -> str:
    """What goes wrong in a new folder below `uri`, and what of it cannot be deleted. `client`: not fsspec's own."""
    try:
        files, root = opened(uri, is_quick=True)
    except ValueError as error:
        return str(error)
    folder, found = f"{root}/.try-{uuid.uuid4().hex}", ""
    try:
        _write(client() if client else files, folder)
    except Exception as error:  # the boundary of fsspec and Arrow: each store raises its own exceptions
        found = f"{uri} cannot be used: {fault(error)}"
    left = _left(files, folder)
    return f"{found} The try could not delete {left}.".strip() if left else found


def _write(files: Any, folder: str) -> None:
    first, second, large = (f"{folder}/{name}" for name in ("first", "second", "large"))
    files.pipe_file(first, SMALL)
    if files.cat_file(first) != SMALL or paths_below(files, folder) != [first]:
        raise OSError("what was written is not read back, or not listed")
    files.rm_file(first)  # before more is there: a store may not let us
    files.pipe_file(second, SMALL)
    files.pipe_file(large, bytes(2 * PART + 1), **({"chunksize": PART} if "s3" in files.protocol else {}))
    if files.find(folder, detail=True)[large]["size"] != 2 * PART + 1:
        raise OSError("an upload in parts has lost some of them")


def _left(files: Any, folder: str) -> str:
    """What stays in the folder of a try when it has been cleared; "" where nothing does, or where nobody answers."""
    left = list[str]()
    with suppress(Exception):  # the same boundary; what is wrong with the store has been said
        for path in files.find(folder):
            with suppress(Exception):
                files.rm_file(path)
        left = files.find(folder)
        if "s3" in files.protocol:
            bucket, _, prefix = folder.partition("/")
            listed = files.call_s3("list_object_versions", Bucket=bucket, Prefix=prefix)
            for each in (*listed.get("Versions", ()), *listed.get("DeleteMarkers", ())):
                files.call_s3("delete_object", Bucket=bucket, Key=each["Key"], VersionId=each["VersionId"])
    return ", ".join(left)
