"""Where models lie whole under their digests: a bucket or a mounted folder, with a manifest of an exported one; and
the copy of one onto this machine, which is verified, goes on after a kill, and is in its place whole or not at all. A
node keeps models for all its processes: who uses one keeps it from being evicted; the least recently used one goes."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple

from pydantic import ValidationError

from pipeline.core.storage import ModelRef, Record, digest_dir, digest_file, digest_json, publish_dir

AT_ONCE = 4
"""Files that are copied at the same time."""
S3_ATTEMPTS = 8
S3_TIMEOUT_S = 60.0
CACHE, SIZE, SOURCE = "WEIGHTS_CACHE", "WEIGHTS_CACHE_GB", "WEIGHTS_SOURCE"
"""Environment: the folder, how much may lie in it, and where models lie by digest (`s3://bucket/prefix`; empty: where
the reference says)."""

_origins: dict[str, str] = {}


class ExportedFile(Record):
    """One file of an exported model."""

    bytes: int
    sha256: str


class ExportManifest(Record):
    """Says that a model is exported whole. It is not in the folder, whose digest counts all files."""

    digest: str
    files: dict[str, ExportedFile]


def copy_model(uri: str, digest: str, folder: Path, log: Callable[[str], None] = print) -> None:
    """Copy the model at `uri` (s3://, gs://, a path) to `folder`, in place of anything else there. Whole files that an
    earlier try left are kept. Raises ValueError when there is no model, or one with another digest; OSError when the
    place cannot be read or the disk is full: another try goes on."""
    if folder.is_dir() and any(folder.iterdir()) and digest_dir(folder) == digest:
        return
    partial = partial_folder(folder, digest)
    with reached(uri):
        files, target = opened(uri)
        sizes = sizes_below(files, target)
        if not sizes:
            raise ValueError(f"There is nothing at {uri}. Name the folder of an exported model.")
        actual = _copied(files, target, sizes, partial)
    if actual != digest:
        shutil.rmtree(partial)
        raise ValueError(
            f"{uri} has the digest {actual}, not {digest}. Name the digest that its model version records, or try "
            "again where an earlier try was cut."
        )
    shutil.rmtree(folder, ignore_errors=True)
    publish_dir(partial, folder)
    log(f"{uri} copied to {folder}, {sum(sizes.values()):,} bytes")


def partial_folder(folder: Path, digest: str) -> Path:
    """Where a copy grows: by its digest, so that no try goes on with another model's."""
    return folder.with_name(f".{folder.name}.partial-{digest[:16]}")


def manifest_beside(files: Any, target: str, digest: str) -> ExportManifest | None:
    """The manifest; None where there is none, or where a file that it names is not there whole."""
    place = f"{target}.json"
    if size_of(files, place) is None:
        return None
    try:
        manifest = ExportManifest.model_validate_json(files.cat_file(place))
    except ValidationError as error:
        raise ValueError(f"{place} is no manifest of an export ({error}). Remove it, and export again.") from error
    if manifest.digest != digest or folder_digest(manifest.files) != digest:
        raise ValueError(f"{place} is the manifest of {manifest.digest[:12]}. Remove it, and export again.")
    return manifest if sizes_below(files, target) == {n: file.bytes for n, file in manifest.files.items()} else None


def folder_digest(files: dict[str, ExportedFile]) -> str:
    """As `digest_dir` has it."""
    return digest_json({name: file.sha256 for name, file in files.items()})


def sizes_below(files: Any, target: str) -> dict[str, int]:
    """Bytes of every file, by its name relative to the folder."""
    return {path[len(target) :].lstrip("/"): row["size"] for path, row in files.find(target, detail=True).items()}


def size_of(files: Any, place: str) -> int | None:
    """In bytes; None where there is no such file. `isfile` would say no to a place that cannot be reached."""
    try:
        row = files.info(place)
    except FileNotFoundError:
        return None
    return int(row["size"]) if row["type"] == "file" else None


def sha256_of(files: Any, place: str, size: int) -> str:
    """Of what lies there; "" where there is nothing of that size."""
    if size_of(files, place) != size:
        return ""
    with files.open(place, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def opened(uri: str) -> tuple[Any, str]:
    """The file system and the folder in it."""
    from fsspec.core import url_to_fs

    options: dict[str, Any] = {}
    if uri.startswith(("s3://", "s3a://")):
        retries = {"mode": "standard", "max_attempts": S3_ATTEMPTS}
        options = {"config_kwargs": {"retries": retries, "connect_timeout": S3_TIMEOUT_S, "read_timeout": S3_TIMEOUT_S}}
    # A cached listing would hide what another attempt brought since.
    files, target = url_to_fs(uri, use_listings_cache=False, skip_instance_cache=True, **options)
    return files, target.rstrip("/")


@contextmanager
def reached(uri: str) -> Generator[None]:
    """Turns what a place's client raises into OSError."""
    try:
        yield
    except (OSError, ValueError):
        raise
    except Exception as error:  # the boundary of fsspec: each backend raises its own exceptions
        raise OSError(
            f"{uri} cannot be reached ({error}). Check the address, the credentials and the rights."
        ) from error


def _copied(files: Any, target: str, sizes: dict[str, int], partial: Path) -> str:
    """Copy the files that are not there whole; returns the digest of the copy in `partial`."""

    def one(name: str) -> str:
        path = partial / name
        if not (path.is_file() and path.stat().st_size == sizes[name]):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.get_file(f"{target}/{name}", str(path))
        return digest_file(path)

    for stray in (path for path in partial.rglob("*") if path.is_file()):
        if str(stray.relative_to(partial)) not in sizes:
            stray.unlink()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return digest_json(dict(zip(sizes, pool.map(one, sizes), strict=True)))


def origin(uri: str) -> str:
    """Where a model lies for everybody, of one that this process holds in its node's cache; else as it is."""
    return _origins.get(uri, uri)


class NodeCache(NamedTuple):
    """`limit`: bytes; `source`: see SOURCE."""

    folder: Path
    limit: int
    source: str = ""

    @contextmanager
    def hold(self, model: ModelRef, log: Callable[[str], None] = print) -> Generator[ModelRef]:
        """The model on this node, there until the block ends; copied where it is not. Raises ValueError when its source
        has another, OSError when it cannot be read or there is no room."""
        self.folder.mkdir(parents=True, exist_ok=True)
        place = self.folder / model.digest
        with self._lock(model.digest) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            while not place.is_dir():  # the kernel gives up a lock before it changes its kind: look again
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not place.is_dir():
                    self._copy(model, place, log)
                fcntl.flock(lock, fcntl.LOCK_SH)
            os.utime(lock.fileno())
            _origins[str(place)] = model.uri
            yield ModelRef(uri=str(place), digest=model.digest)

    def _copy(self, model: ModelRef, place: Path, log: Callable[[str], None]) -> None:
        """One model at a time on a node: they share its network and its disk."""
        uri = f"{self.source.rstrip('/')}/{model.digest}" if self.source else model.uri
        with reached(uri):
            size = sum(sizes_below(*opened(uri)).values())
        with (self.folder / "copying").open("a") as alone:
            fcntl.flock(alone, fcntl.LOCK_EX)
            self._make_room(size, model.digest, log)
            copy_model(uri, model.digest, place, log)

    def _make_room(self, size: int, digest: str, log: Callable[[str], None]) -> None:
        mine = partial_folder(self.folder / digest, digest)
        for path in self.folder.glob(".*.partial-*"):
            if path != mine:  # no other process copies now: a kill left it
                shutil.rmtree(path)
        kept = sorted((path for path in self.folder.iterdir() if path.is_dir() and path != mine), key=self._last_use)
        sizes = {path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in kept}
        for path in kept:
            if sum(sizes.values()) + size <= self.limit:
                return
            with self._lock(path.name) as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue  # in use
                path.rename(gone := partial_folder(path, path.name))  # first: what is half removed is no model
                shutil.rmtree(gone)
            log(f"{path.name[:12]} evicted from {self.folder}, {sizes.pop(path):,} bytes")
        if (used := sum(sizes.values())) + size > self.limit:
            raise OSError(
                f"{self.folder} has room for {self.limit:,} bytes; models in use take {used:,}, and {digest[:12]} "
                f"needs {size:,}. Raise compute.kubernetes.weights.size_gb."
            )

    def _last_use(self, path: Path) -> float:
        lock = self.folder / f"{path.name}.lock"
        return lock.stat().st_mtime if lock.exists() else 0.0

    def _lock(self, digest: str) -> IO[str]:
        return (self.folder / f"{digest}.lock").open("a")


def node_cache(environment: Mapping[str, str]) -> NodeCache | None:
    """The one that the pod was given; None: models are read where they lie. Raises ValueError for an odd size."""
    if not environment.get(CACHE):
        return None
    text = environment.get(SIZE, "")
    if not text.isdecimal() or not int(text):
        raise ValueError(f"{SIZE} is {text!r}. Give the size of {CACHE} in whole gigabytes.")
    return NodeCache(Path(environment[CACHE]), int(text) * 10**9, environment.get(SOURCE, ""))


def on_this_node(model: ModelRef, log: Callable[[str], None] = print) -> AbstractContextManager[ModelRef]:
    """The model for the block: from the node's cache, where the pod was given one."""
    cache = node_cache(os.environ)
    return cache.hold(model, log) if cache else nullcontext(model)
