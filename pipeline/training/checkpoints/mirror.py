"""The mirror: checkpoints in an object store or a folder, `<mirror>/<first 12 of the plan digest>/step-NNNNNN/`, for
nodes whose disk dies with them. Files go up first and the manifest last."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from pipeline.core import layout
from pipeline.core.locations import Uri, is_bucket
from pipeline.core.redaction import redacted
from pipeline.core.storage import Record, Store, write_atomically
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

CLAIM = "writer.json"
_MARK = "erased-"
_WORDS = b"An erasure removed data that this training learned from: nothing of it may lie here.\n"


class MirrorPlace(Record):
    """A training's folder in a mirror: the mirror's URI or absolute path, and the folder's name in it."""

    uri: Uri
    folder: str


class MirrorPlaces(Record):
    """Where checkpoints of an iteration were ever copied to: a plan names its present mirror alone."""

    places: tuple[MirrorPlace, ...] = ()


def place_of(uri: str, plan_digest: str) -> MirrorPlace:
    path = uri.removeprefix("file://")
    return MirrorPlace(uri=uri if "://" in path else str(Path(path).absolute()), folder=plan_digest[:12])


def remember(store: Store, iteration: str, place: MirrorPlace) -> None:
    """Put a place on record, once."""
    recorded = places_of(store, iteration)
    if place not in recorded:
        store.write(layout.iteration(iteration, layout.MIRRORS), MirrorPlaces(places=(*recorded, place)))


def places_of(store: Store, iteration: str) -> tuple[MirrorPlace, ...]:
    """Raises ValueError for a record that cannot be read."""
    record = store.read(layout.iteration(iteration, layout.MIRRORS), MirrorPlaces)
    return record.places if record is not None else ()


def mark_of(iteration: str) -> str:
    """The name of the object that closes a mirror to an iteration's training."""
    return f"{_MARK}{iteration}"


def mirror_folder(uri: str, folder: str) -> MirrorFolder | None:
    """`folder` below the mirror's `uri`; None for a store that is neither a folder nor S3. Makes no connection."""
    known = is_bucket(uri) or "://" not in uri.removeprefix("file://")
    return MirrorFolder(uri, folder) if known else None


class MirrorFolder:
    """One training's folder in a mirror, as an erasure clears and closes it. The writers' claim and the marks stay.
    Methods raise OSError, with what to do, where the store does not answer or does not let them."""

    def __init__(self, uri: str, folder: str) -> None:
        """Raises ValueError when no driver takes the URI."""
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
        self._root = f"{root.rstrip('/')}/{folder}"
        self.name = f"{uri.rstrip('/')}/{folder}" if is_bucket(uri) else self._root

    def is_begun(self) -> bool:
        """Whether an attempt ever claimed it."""
        with self._asked():
            return self._fs.exists(f"{self._root}/{CLAIM}")

    def close(self, iteration: str) -> None:
        """Leave the mark, unless it is there."""
        with self._asked():
            if not self._fs.exists(f"{self._root}/{mark_of(iteration)}"):
                self._fs.pipe_file(f"{self._root}/{mark_of(iteration)}", _WORDS)

    def steps(self) -> list[str]:
        """The names of the checkpoints, whole or not, of which anything is there."""
        with self._asked():
            return [name for name in self._names() if name != CLAIM and not name.startswith(_MARK)]

    def clear(self) -> list[str]:
        """Delete all of them, and list what is there then: a line for each checkpoint that stays, with the reason."""
        reasons: dict[str, str] = {}
        for step in self.steps():
            try:
                with self._asked():
                    self._fs.rm(f"{self._root}/{step}", recursive=True)
            except OSError as error:
                reasons[step] = error.strerror or str(error)
        lines = [f"{self.name}/{step}: {reasons.get(step, 'the store did not delete it')}" for step in self.steps()]
        if is_bucket(self.uri):
            with self._asked():
                answer = self._fs.call_s3("get_bucket_versioning", Bucket=self._root.partition("/")[0])
            if answer.get("Status"):
                what = "the bucket keeps versions, and those of deleted checkpoints stay. Expire noncurrent versions"
                lines.append(f"{self.name}: {what} by a lifecycle rule")
        return lines

    def _names(self) -> list[str]:
        if is_bucket(self.uri):  # by the objects that are there: a prefix of deleted versions alone is no checkpoint
            inside = (str(name).partition(f"{self._root}/")[2] for name in self._fs.find(self._root))
            return sorted({name.partition("/")[0] for name in inside})
        try:
            there = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in there)

    @contextmanager
    def _asked(self) -> Generator[None]:
        try:
            yield
        except Exception as error:  # the boundary of fsspec: each backend raises its own exceptions
            if not is_bucket(self.uri) and isinstance(error, OSError):
                raise
            raise OSError(
                f"the store does not answer or refuses ({redacted(str(error))}). Check AWS_ENDPOINT_URL and the "
                "network, and grant s3:ListBucket, s3:GetBucketVersioning, s3:GetObject, s3:PutObject, s3:DeleteObject"
            ) from error


class MirrorClaim(Record):
    id: str


class Mirror(MirrorFolder):
    """Checkpoints of one training under `uri`. Makes no connection until it is asked; raises what the driver raises.
    Each start of a trainer writes its claim to `writer.json`, and stops uploading once it finds another's; it looks
    before the files and before the manifest. One that is overtaken after that puts one object, which fails its sha256
    when it is fetched. An erasure's mark is looked for before each file and after the last one."""

    def __init__(self, uri: str, origin: Origin) -> None:
        super().__init__(uri, origin.plan_digest[:12])
        self._origin = origin
        self._claim = MirrorClaim(id=uuid.uuid4().hex)
        self._claimed = False

    def claim(self) -> None:
        """Become the writer."""
        self._fs.pipe_file(f"{self._root}/{CLAIM}", self._claim.model_dump_json().encode())
        self._claimed = True

    def manifests(self, warn: Callable[[str], None] = lambda reason: None) -> list[CheckpointManifest]:
        """Of every checkpoint that is up and compatible; `warn` hears why another is not."""
        found: list[CheckpointManifest] = []
        for step in self._steps():
            try:
                found.append(unseal(self._fs.cat_file(self._path(step, MANIFEST)), self._origin, step))
            except FileNotFoundError:
                warn(f"{folder_name(step)} in the mirror is passed over: {MANIFEST} is missing, its upload was cut")
            except ValueError as reason:
                warn(f"{folder_name(step)} in the mirror is passed over: {reason}")
        return found

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
        found = None
        if self._claimed:
            with suppress(FileNotFoundError, ValueError):  # half written, where the store is a plain file system
                found = MirrorClaim.model_validate_json(self._fs.cat_file(f"{self._root}/{CLAIM}"))
        if found is None:
            self.claim()
        return found in (None, self._claim)

    def _put(self, file: Path, path: str, size: int) -> None:
        self._fs.put_file(str(file), path)
        if (there := self._fs.info(path)["size"]) != size:
            raise OSError(f"{path} has {there} bytes after the upload instead of {size}")

    def _steps(self) -> list[int]:
        return sorted(step for name in self._names() if (step := step_of(name)) is not None)

    def _path(self, step: int, *name: str) -> str:
        return "/".join((self._root, folder_name(step), *name))
