"""The mirror: the same checkpoints in an object store, for nodes whose disk dies with them.

Owns the layout `<mirror>/<first 12 of the plan digest>/step-NNNNNN/` and the fence between attempts. Files go up first
and the manifest last: a checkpoint whose manifest is not there is never trusted. Raises whatever the driver raises.

Uploads beside the training: one thread, and the newest checkpoint wins over one that waits.

Owns what waits, what is in flight and what is said about it. No step waits for it, and no error of it stops a
training: a checkpoint that did not get up is reported, and the next one tries again.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from pipeline.recipe import Checkpoints
from pipeline.storage import Record, write_atomically
from pipeline.training.checkpoints.manifest import (
    MANIFEST,
    CheckpointManifest,
    Origin,
    folder_name,
    keep,
    read,
    sealed,
    step_of,
    unseal,
)

CLAIM = "writer.json"


class MirrorClaim(Record):
    attempt: int
    id: str
    """Tells two attempts apart that claimed the same number at once: the one that is read back has won."""


class Mirror:
    """Checkpoints of one training under `uri`. Makes no connection until it is asked.

    The fence: `writer.json` names the attempt that writes. Each claims a number above the one that it finds, and stops
    writing once it finds another's that is as high as its own. It looks before the files and before the manifest; the
    store has no lock, so an attempt that is overtaken after its last look still puts one object, and one that could
    not reach the store at its start claims late. Neither makes a bad checkpoint count: a folder with files of two
    attempts fits no manifest, every sha256 is checked when it is fetched, and the next upload replaces it.

    Raises ValueError when no driver takes the URI.
    """

    def __init__(self, uri: str, origin: Origin, attempt: int) -> None:
        try:
            # A cached listing would hide what another attempt did meanwhile.
            fs, root = url_to_fs(uri, use_listings_cache=False, skip_instance_cache=True)
        except (ImportError, ValueError) as error:
            raise ValueError(
                f"training.checkpoints.mirror is {uri!r}, which cannot be opened ({error}). Give s3://bucket/prefix."
            ) from error
        if isinstance(fs, LocalFileSystem):
            fs.auto_mkdir = True
        self.uri = uri
        self._fs: Any = fs
        self._root = f"{root.rstrip('/')}/{origin.plan_digest[:12]}"
        self._origin = origin
        self._claim = MirrorClaim(attempt=attempt, id=uuid.uuid4().hex)
        self._claimed = False

    def claim(self) -> None:
        """Become the writer, with a number above any that was claimed before."""
        if (remote_claim := self._claim_there()) is not None and remote_claim.id != self._claim.id:
            higher = max(self._claim.attempt, remote_claim.attempt + 1)  # a new disk counts its attempts from 1
            self._claim = self._claim.model_copy(update={"attempt": higher})
        self._write_claim()
        self._claimed = True

    def manifests(self, warn: Callable[[str], None] = lambda reason: None) -> list[CheckpointManifest]:
        """Of every checkpoint that is up and compatible; `warn` hears why another is not."""
        remote_manifests: list[CheckpointManifest] = []
        for step in self._steps():
            try:
                remote_manifests.append(unseal(self._fs.cat_file(self._path(step, MANIFEST)), self._origin, step))
            except FileNotFoundError:
                warn(f"{folder_name(step)} in the mirror is passed over: {MANIFEST} is missing, its upload was cut")
            except ValueError as reason:
                warn(f"{folder_name(step)} in the mirror is passed over: {reason}")
        return remote_manifests

    def fetch(self, manifest: CheckpointManifest, into: Path) -> None:
        """Download a checkpoint's files into the folder `into`. Nothing is verified here."""
        for name in manifest.files:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            self._fs.get_file(self._path(manifest.step, name), str(into / name))
        write_atomically(into / MANIFEST, sealed(manifest))

    def put(self, folder: Path, manifest: CheckpointManifest) -> bool:
        """Upload a published checkpoint, its manifest last. False: another attempt writes here now, and we must not."""
        if not self._ours():
            return False
        at = self._path(manifest.step, MANIFEST)
        if self._fs.exists(at):
            if self._fs.cat_file(at) == sealed(manifest):
                return True
            self._fs.rm_file(at)  # never trusted while its files change
        for name, file in manifest.files.items():
            self._put(folder / name, self._path(manifest.step, name), file.size)
        if not self._ours():
            return False
        self._put(folder / MANIFEST, at, len(sealed(manifest)))
        return True

    def retain(self, committed: int, settings: Checkpoints) -> None:
        """Drop what the settings don't keep of the steps up to `committed`, cut uploads included."""
        kept = keep(self.manifests(), committed, settings)
        for step in self._steps():
            if step <= committed and step not in kept:
                if self._fs.exists(self._path(step, MANIFEST)):
                    self._fs.rm_file(self._path(step, MANIFEST))
                self._fs.rm(self._path(step), recursive=True)

    def _ours(self) -> bool:
        """Whether this attempt may write now; claims if it has not yet, or if its claim was lost."""
        if not self._claimed:
            self.claim()
            return True
        remote_claim = self._claim_there()
        if (
            remote_claim is not None
            and remote_claim.id != self._claim.id
            and remote_claim.attempt >= self._claim.attempt
        ):
            return False
        if remote_claim != self._claim:
            self._write_claim()
        return True

    def _claim_there(self) -> MirrorClaim | None:
        try:
            return MirrorClaim.model_validate_json(self._fs.cat_file(f"{self._root}/{CLAIM}"))
        except FileNotFoundError:
            return None
        except ValueError:  # half written, where the store is a plain file system: nobody's
            return None

    def _write_claim(self) -> None:
        self._fs.pipe_file(f"{self._root}/{CLAIM}", self._claim.model_dump_json().encode())

    def _put(self, file: Path, path: str, size: int) -> None:
        self._fs.put_file(str(file), path)
        if (there := self._fs.info(path)["size"]) != size:
            raise OSError(f"{path} has {there} bytes after the upload instead of {size}")

    def _steps(self) -> list[int]:
        try:
            there = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        return sorted(step for name in there if (step := step_of(str(name).rstrip("/").rpartition("/")[2])) is not None)

    def _path(self, step: int, *name: str) -> str:
        return "/".join((self._root, folder_name(step), *name))


class Uploads:
    """Starts its thread at once, which claims the mirror for this attempt."""

    def __init__(self, mirror: Mirror, origin: Origin, settings: Checkpoints, say: Callable[[str], None]) -> None:
        self._mirror, self._origin, self._settings, self._say = mirror, origin, settings, say
        self._changed = threading.Condition()
        self._waiting: Path | None = None
        self._flying: Path | None = None
        self._failed: Path | None = None
        self._closed = False
        threading.Thread(target=self._work, name="checkpoint-uploads", daemon=True).start()

    def offer(self, folder: Path) -> None:
        """Upload `folder` when the one in flight is done, in the place of any that waits."""
        with self._changed:
            self._waiting, self._failed = folder, None
            self._changed.notify_all()

    def needs(self, folder: Path) -> bool:
        """Whether `folder` is in flight or waits, and must not be removed."""
        with self._changed:
            return folder in (self._waiting, self._flying)

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing waits or flies; one that failed last is tried once more. Whether the newest is up."""
        with self._changed:
            if self._failed is not None and self._flying is None:
                self._waiting, self._failed = self._failed, None
                self._changed.notify_all()
            idle = self._changed.wait_for(lambda: self._closed or not (self._waiting or self._flying), timeout_s)
            return idle and not (self._waiting or self._flying or self._failed)

    def close(self) -> None:
        """Take no more. One in flight may go on to its end, or be cut by the end of the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            self._mirror.claim()
        except Exception as error:  # the boundary of fsspec: each backend raises its own exceptions
            self._say(f"the mirror {self._mirror.uri} cannot be written to yet ({_cause(error)})")
        while (folder := self._next()) is not None:
            up = self._upload(folder)
            with self._changed:
                self._flying = None
                self._failed = None if up or self._waiting else folder
                self._changed.notify_all()

    def _next(self) -> Path | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting is not None)
            if self._closed:
                return None
            self._flying, self._waiting = self._waiting, None
            return self._flying

    def _upload(self, folder: Path) -> bool:
        try:
            manifest = read(folder, self._origin)
            if not self._mirror.put(folder, manifest):
                self._say(f"another attempt writes to the mirror {self._mirror.uri} now: this one uploads no more")
                self.close()
                return False
        except Exception as error:  # the boundary of fsspec: each backend raises its own exceptions
            self._say(f"checkpoint {folder.name} is not in the mirror ({_cause(error)}); the next one tries again")
            return False
        try:
            self._mirror.retain(manifest.step, self._settings)
        except Exception as error:  # the same boundary
            self._say(f"older checkpoints in the mirror {self._mirror.uri} were not cleared ({_cause(error)})")
        return True


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
