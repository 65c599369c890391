"""The models that a node keeps, copied once for all its processes, by digest. Whoever uses one keeps it from being
evicted; room is made by evicting what was used longest ago."""

import fcntl
import os
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, NamedTuple

from pipeline.core.storage import ModelRef
from pipeline.serving.model_places import copy_model, opened, partial_folder, reached, sizes_below

CACHE, SIZE, SOURCE = "WEIGHTS_CACHE", "WEIGHTS_CACHE_GB", "WEIGHTS_SOURCE"
"""Environment: the folder, how much may lie in it, and where models lie by digest (`s3://bucket/prefix`; empty: where
the reference says)."""

_origins: dict[str, str] = {}


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
        kept = {
            path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            for path in self.folder.iterdir()
            if path.is_dir() and path != mine
        }
        used = sum(kept.values())
        locks = {path: self.folder / f"{path.name}.lock" for path in kept}
        last_use = {path: lock.stat().st_mtime if lock.exists() else 0.0 for path, lock in locks.items()}
        for path in sorted(kept, key=lambda path: last_use[path]):
            if used + size <= self.limit:
                return
            with self._lock(path.name) as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue  # in use
                # By its name first: what is half removed is no model.
                path.rename(gone := partial_folder(path, path.name))
                shutil.rmtree(gone)
            used -= kept[path]
            log(f"{path.name[:12]} evicted from {self.folder}, {kept[path]:,} bytes")
        if used + size > self.limit:
            raise OSError(
                f"{self.folder} has room for {self.limit:,} bytes; models in use take {used:,}, and {digest[:12]} "
                f"needs {size:,}. Raise compute.kubernetes.weights.size_gb."
            )

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
