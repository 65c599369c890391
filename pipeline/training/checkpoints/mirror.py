"""The mirror: checkpoints in an object store or a folder, `<mirror>/<first 12 of the plan digest>/step-NNNNNN/`, for
nodes whose disk dies with them. Files go up first and the manifest last."""

import threading
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from pipeline.core import layout
from pipeline.core.locations import Uri
from pipeline.core.objects import fault, kept_versions, opened, paths_below, reached
from pipeline.core.storage import Record, Store, write_atomically
from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints.manifest import (
    MANIFEST,
    CheckpointManifest,
    Origin,
    checked,
    folder_name,
    keep,
    read,
    step_of,
    written,
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


def mirror_folder(uri: str, folder: str) -> "MirrorFolder | None":
    """`folder` below the mirror's `uri`; None where no driver is installed for it. Makes no connection."""
    with suppress(ValueError):
        return MirrorFolder(uri, folder)
    return None


class MirrorFolder:
    """One training's folder in a mirror, as an erasure clears and closes it. The writers' claim and the marks stay.
    Methods raise OSError, with what to do, where the store does not answer or does not let them."""

    def __init__(self, uri: str, folder: str) -> None:
        """Raises ValueError when no driver takes the URI."""
        self.uri, self._folder = uri, folder
        self.open_anew()
        is_local = isinstance(self._fs, LocalFileSystem)
        self.name = self._root if is_local else f"{uri.rstrip('/')}/{folder}"

    def open_anew(self) -> None:
        """Begin a session, which reads the environment and the files of credentials as they are now."""
        self._fs, root = opened(self.uri)
        self._root = f"{root}/{self._folder}"

    def is_begun(self) -> bool:
        """Whether an attempt ever claimed it."""
        with reached(self.uri):
            return CLAIM in self._names()

    def close(self, iteration: str) -> None:
        """Leave the mark, unless it is there."""
        with reached(self.uri):
            if mark_of(iteration) not in self._names():
                self._fs.pipe_file(f"{self._root}/{mark_of(iteration)}", _WORDS)

    def steps(self) -> list[str]:
        """The names of the checkpoints, whole or not, of which anything is there."""
        with reached(self.uri):
            return [name for name in self._names() if name != CLAIM and not name.startswith(_MARK)]

    def clear(self) -> list[str]:
        """Delete all of them, and list what is there then: a line for each checkpoint that stays, with the reason."""
        reasons = self._delete(self.steps())
        lines = [f"{self.name}/{step}: {reasons.get(step, 'the store did not delete it')}" for step in self.steps()]
        return [*lines, f"{self.name}: {line}"] if (line := kept_versions(self.uri)) else lines

    def _delete(self, names: Iterable[str]) -> dict[str, str]:
        """Delete these checkpoints, object by object, as not every store takes a batch; returns why one stays, by its
        name. The manifest goes second: where nothing can be deleted it stays, and else nobody trusts the rest."""
        reasons: dict[str, str] = {}
        for name in names:
            folder = f"{self._root}/{name}"
            try:
                with reached(self.uri):
                    paths = paths_below(self._fs, folder)
                    paths.sort(key=lambda path: path != f"{folder}/{MANIFEST}")
                    for path in (*paths[1:2], *paths[:1], *paths[2:]):
                        self._fs.rm_file(path)
                    if isinstance(self._fs, LocalFileSystem) and self._fs.isdir(folder):
                        self._fs.rm(folder, recursive=True)
            except OSError as error:
                reasons[name] = error.strerror or str(error)
        return reasons

    def _names(self) -> list[str]:
        """By the files that are there: a prefix of deleted versions alone is no checkpoint. By a listing, as a HEAD
        that is refused has no reason."""
        inside = (path.partition(f"{self._root}/")[2] for path in paths_below(self._fs, self._root))
        return sorted({name.partition("/")[0] for name in inside} - {""})


class MirrorClaim(Record):
    id: str


class Mirror(MirrorFolder):
    """Checkpoints of one training under `uri`. Makes no connection until it is asked; raises what the driver raises.
    Each start of a trainer writes its claim to `writer.json`, and stops uploading once it finds another's; it looks
    before the files and before the manifest. One that is overtaken after that puts one object, which fails its sha256
    when it is fetched. An erasure's mark is looked for before the files and after the manifest."""

    def __init__(self, uri: str, origin: Origin) -> None:
        super().__init__(uri, origin.plan_digest[:12])
        self.origin = origin
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
                found.append(checked(self._fs.cat_file(self._path(step, MANIFEST)), self.origin, step))
            except FileNotFoundError:
                warn(f"{folder_name(step)} in the mirror is passed over: {MANIFEST} is missing, its upload was cut")
            except ValueError as reason:
                warn(f"{folder_name(step)} in the mirror is passed over: {reason}")
        return found

    def fetch(self, manifest: CheckpointManifest, into: Path) -> None:
        """Download a checkpoint's files into the folder `into`. Nothing is verified here."""
        names = list(manifest.files)
        self._fs.get([self._path(manifest.step, name) for name in names], [str(into / name) for name in names])
        write_atomically(into / MANIFEST, written(manifest))

    def put(self, folder: Path, manifest: CheckpointManifest) -> bool:
        """Upload a published checkpoint, its manifest last. False: another attempt writes here now, or an erasure has
        closed the mirror, and we must not."""
        if not self._ours():
            return False
        at = self._path(manifest.step, MANIFEST)
        with suppress(FileNotFoundError):
            if self._fs.cat_file(at) == written(manifest):
                return True
            self._fs.rm_file(at)  # never trusted while its files change
        names = list(manifest.files)
        self._fs.put([str(folder / name) for name in names], [self._path(manifest.step, name) for name in names])
        if not self._ours():
            return False
        self._fs.put_file(str(folder / MANIFEST), at)
        return not self.is_closed()

    def is_closed(self) -> bool:
        """Whether an erasure took data of this training away."""
        iteration = self.origin.iteration
        return mark_of(iteration) in self._names() if iteration else False

    def retain(self, committed: int, settings: Checkpoints) -> None:
        """Drop what the settings don't keep of the steps up to `committed`, cut uploads included. Raises OSError after
        all were tried."""
        kept = keep(self.manifests(), committed, settings)
        stay = self._delete(folder_name(step) for step in self._steps() if step <= committed and step not in kept)
        if stay:
            raise OSError(", ".join(stay) + f": {next(iter(stay.values()))}")

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

    def _steps(self) -> list[int]:
        return sorted(step for name in self._names() if (step := step_of(name)) is not None)

    def _path(self, step: int, *name: str) -> str:
        return "/".join((self._root, folder_name(step), *name))


class Uploads:
    """Uploads during the training: one thread, which claims the mirror for this attempt. The newest checkpoint replaces
    one that waits. No step waits for it, and no error of it stops a training."""

    def __init__(self, mirror: Mirror, settings: Checkpoints, say: Callable[[str], None]) -> None:
        self._mirror, self._settings, self._say = mirror, settings, say
        self._changed = threading.Condition()
        self._newest: Path | None = None
        """Not up yet; it is tried while `_due`."""
        self._flying: Path | None = None
        self._due = self._closed = False
        self.erased = False
        """Whether an erasure has closed the mirror to this training."""
        threading.Thread(target=self._work, name="checkpoint-uploads", daemon=True).start()

    def offer(self, folder: Path) -> None:
        """Upload `folder` when the one in flight is done, in the place of any that waits."""
        with self._changed:
            self._newest, self._due = folder, True
            self._changed.notify_all()

    def needs(self, folder: Path) -> bool:
        """Whether `folder` is in flight or waits, and must not be removed."""
        with self._changed:
            return folder in (self._newest, self._flying)

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing waits or flies; one that failed last is tried once more. Whether the newest is up."""
        with self._changed:
            self._due = self._newest not in (None, self._flying)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or not (self._due or self._flying), timeout_s)
            return self._newest is None and self._flying is None

    def close(self) -> None:
        """Take no more. One in flight may go on to its end, or be cut by the end of the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            self._mirror.claim()
            if self._mirror.is_closed():
                self._stop()
        except Exception as error:  # the boundary of fsspec: each backend raises its own exceptions
            self._say(f"the mirror {self._mirror.uri} cannot be written to yet: {fault(error)}")
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._due)
                if self._closed or self._newest is None:
                    return
                folder = self._flying = self._newest
                self._due = False
            up = self._upload(folder)
            with self._changed:
                self._flying = None
                if up and self._newest == folder:
                    self._newest, self._due = None, False
                self._changed.notify_all()

    def _upload(self, folder: Path) -> bool:
        """Whether it is in the mirror now."""
        mirror, up = self._mirror, False
        try:
            mirror.open_anew()  # keys of sessions end before trainings do, and their owner renews them
            manifest = read(folder, mirror.origin)
            up = mirror.put(folder, manifest)
            mirror.retain(manifest.step, self._settings) if up else self._stop()
        except Exception as error:  # the same boundary
            what = "in the mirror, where older ones were not cleared" if up else "not in the mirror"
            self._say(f"checkpoint {folder.name} is {what}, and the next one tries again: {fault(error)}")
        return up

    def _stop(self) -> None:
        """Another attempt writes to the mirror now, or an erasure has closed it: then what came up is deleted."""
        self.erased = self._mirror.is_closed()
        if self.erased:
            self._say(f"an erasure has closed the mirror {self._mirror.uri} to this training: nothing more is uploaded")
            for line in self._mirror.clear():
                self._say(f"still in the mirror, {line}")
        else:
            self._say(f"another attempt writes to the mirror {self._mirror.uri} now: this one uploads no more")
        self.close()
