"""The mirror: the same checkpoints in an object store, for nodes whose disk dies with them.

Owns the layout `<mirror>/<first 12 of the plan digest>/step-NNNNNN/` and the fence between attempts. Files go up first
and the manifest last: a checkpoint whose manifest is not there is never trusted. Raises whatever the driver raises.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from pipeline.core.storage import Record, write_atomically
from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints.manifest import (
    MANIFEST,
    CheckpointManifest,
    Origin,
    folder_name,
    keep,
    sealed,
    step_of,
    unseal,
)
from pipeline.training.checkpoints.mirror_removal import CLAIM, mark_of, mirror_folder


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

    An erasure closes the mirror to a training with a mark beside the claim. It is looked for before each file and after
    the last one, and `withdraw` takes out what the training has put.

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
        """Upload a published checkpoint, its manifest last. False: another attempt writes here now, or an erasure has
        closed the mirror, and we must not."""
        if not self._ours():
            return False
        at = self._path(manifest.step, MANIFEST)
        if self._fs.exists(at):
            if self._fs.cat_file(at) == sealed(manifest):
                return True
            self._fs.rm_file(at)  # never trusted while its files change
        for name, file in manifest.files.items():
            if self.is_closed():
                return False
            self._put(folder / name, self._path(manifest.step, name), file.size)
        if not self._ours():
            return False
        self._put(folder / MANIFEST, at, len(sealed(manifest)))
        return not self.is_closed()

    def is_closed(self) -> bool:
        """Whether an erasure took data of this training away."""
        iteration = self._origin.iteration
        return bool(iteration) and self._fs.exists(f"{self._root}/{mark_of(iteration)}")

    def withdraw(self) -> list[str]:
        """Take every checkpoint of the training out of the store; a line for each that stays, with the reason."""
        folder = mirror_folder(self.uri, self._root.rpartition("/")[2])
        return folder.clear() if folder is not None else []

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
        if self.is_closed():
            return False
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
