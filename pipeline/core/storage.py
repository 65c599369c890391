"""The store: one directory tree in which every stage publishes, each record in one atomic step. Nothing that it writes
names the tree's own path, so the tree can be moved. Files and directories under construction are named apart, locked
while they are written, and swept where a kill left them. Locks hold on every machine that shares the directory."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ConfigDict

from pipeline.core.locations import Document, Uri, stored
from pipeline.core.mark_keys import MarkKeys
from pipeline.core.model_files import faults, model_files


class Record(BaseModel):
    """An immutable record of a stage; JSON on disk, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class DatasetRef(Record):
    """A published set of rows: where it lies, how many rows, and the sha256 of its content."""

    uri: Uri
    rows: int
    digest: str
    snapshot: str = ""


class ModelRef(Record):
    """A complete model directory (weights, config, tokenizer) and the digest of its files."""

    uri: Uri
    digest: str


class CheckpointRef(Record):
    """What training leaves: the adapter, the model with the adapter merged into it, and the optimiser step."""

    adapter: ModelRef
    model: ModelRef
    step: int


R = TypeVar("R", bound=BaseModel)
_NO_KEYS = MarkKeys()
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{32}")


class Store:
    """A root directory for everything durable; names are relative to it. `keys`: of the marks of users in it."""

    def __init__(self, root: str | Path, keys: MarkKeys = _NO_KEYS) -> None:
        if "://" in str(root):
            raise ValueError(f"data_root is {root!r}; the store keeps to a local or mounted directory: give a path.")
        self.root = Path(root).absolute()
        self.keys = keys

    def path(self, *parts: str) -> Path:
        return self.root.joinpath(*parts)

    def write(self, name: str, record: BaseModel) -> Path:
        """Publish a record under `name`, replacing an older one in one step."""
        path = self.path(name)
        write_atomically(path, to_json(record, Document(path, self.root)))
        return path

    def create(self, name: str, record: BaseModel) -> bool:
        """Publish a record unless `name` exists; False when it does."""
        path = self.path(name)
        try:
            with claimed_file(path) as (staged, stream):
                stream.write(to_json(record, Document(path, self.root)).encode())
                stream.flush()
                sync(stream.fileno(), path)
                os.link(staged, path)  # fails if the name is taken: the one portable create-if-absent
        except FileExistsError:
            return False
        sync_path(path.parent)
        return True

    def read(self, name: str, kind: type[R]) -> R | None:
        """The record under `name`, or None. Raises ValueError when it cannot be read as `kind`."""
        path = self.path(name)
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return kind.model_validate_json(text, context=Document(path))
        except ValueError as error:
            raise ValueError(
                f"{path} is not a readable {kind.__name__} ({error}). Move it away and run again."
            ) from error

    def once(self, name: str, kind: type[R], make: Callable[[], R]) -> R:
        """The record under `name`, made and published if it is not there yet: this makes a stage idempotent."""
        if (existing := self.read(name, kind)) is not None:
            return existing
        record = make()
        return record if self.create(name, record) else self.once(name, kind, make)

    def within(self, value: Any) -> Any:
        """A path or URI at or below the root, relative to it; any other value as it is."""
        return stored(value, Document(self.path("-"), self.root)) if isinstance(value, str) else value

    @contextmanager
    def staged(self, name: str) -> Generator[Path]:
        """A private directory that becomes `name` when the block succeeds, unless `name` exists by then; else it is
        deleted."""
        with claimed_folder(self.path(name)) as staging:
            yield staging
            publish_dir(staging, self.path(name))


def publish_dir(staging: Path, final: Path) -> bool:
    """Sync every file of `staging`, then rename it to `final`; False if `final` exists."""
    for path in [*staging.rglob("*"), staging]:
        sync_path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        staging.rename(final)
    except OSError:
        if final.is_dir():
            return False
        raise
    sync_path(final.parent)
    return True


def write_atomically(path: Path, content: str | bytes) -> None:
    with replacing(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


def to_json(record: BaseModel, document: Document) -> str:
    return record.model_dump_json(indent=2, context=document) + "\n"


def digest_json(value: Any) -> str:
    """sha256 of a value's canonical JSON; a record counts as its fields."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_dir(path: Path) -> str:
    """sha256 over the relative name and sha256 of every file below `path` that is not hidden, in name order."""
    files = {name: digest_file(path / name) for name in model_files(path)}
    if not files:
        raise ValueError(f"{path} has no files. Point to a directory that holds a model.")
    return digest_json(files)


def model_ref(path: str | Path) -> ModelRef:
    """Reference to a Hugging Face model directory. Raises ValueError naming all that it lacks."""
    folder = Path(path)
    if lacks := faults(folder):
        raise ValueError(" ".join(lacks))
    return ModelRef(uri=str(folder), digest=digest_dir(folder))


def shown_path(path: str | Path) -> str:
    """A path for an error message: absolute, and of a relative one the directory that it is relative to."""
    if "://" in str(path) or Path(path).is_absolute():
        return str(path)
    return f"{Path(path).absolute()} ({path} is relative to {Path.cwd()})"


@contextmanager
def replacing(path: Path) -> Generator[IO[bytes]]:
    """A stream whose content replaces `path`, durably, when the block succeeds. An existing mode is kept."""
    with claimed_file(path) as (staged, stream):
        with suppress(FileNotFoundError):
            os.fchmod(stream.fileno(), stat.S_IMODE(path.stat().st_mode))
        yield stream
        stream.flush()
        sync(stream.fileno(), path)
        staged.replace(path)
    sync_path(path.parent)


@contextmanager
def locked(path: Path, how: int = fcntl.LOCK_EX) -> Generator[None]:
    """Hold the lock of a file, made if there is none, until the block ends; the kernel drops it with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("rb" if how == fcntl.LOCK_SH and path.exists() else "ab") as handle:
        fcntl.flock(handle, how)
        yield


@contextmanager
def held(path: Path) -> Generator[int]:
    """A descriptor to append to the file, under its lock; the file is made if there is none. A file that was replaced
    during the wait is opened again; of a file that this user may not write the descriptor is read-only."""
    while True:
        writable = not path.exists() or os.access(path, os.W_OK)
        mode = os.O_RDWR | os.O_APPEND | os.O_CREAT if writable else os.O_RDONLY
        descriptor = os.open(path, mode, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                yield descriptor
                return
        finally:
            os.close(descriptor)


@contextmanager
def held_lines(path: Path) -> Generator[int]:
    """As `held`, of a file of lines and in a folder that is made: half a line that a kill left is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with held(path) as descriptor:
        size = end = os.fstat(descriptor).st_size
        while end and not (block := os.pread(descriptor, min(end, 4096), max(0, end - 4096))).endswith(b"\n"):
            end -= len(block) - block.rfind(b"\n") - 1
        if end < size:
            os.ftruncate(descriptor, end)
        yield descriptor


def append(path: Path, content: bytes, durable: bool = False) -> None:
    """Whole lines at the end of a file, or nothing where it raises OSError."""
    with held_lines(path) as descriptor:
        append_to(descriptor, path, content, durable)


def append_to(descriptor: int, path: Path, content: bytes, durable: bool = False) -> None:
    """As `append`, to what `held_lines` gave."""
    size, left = os.fstat(descriptor).st_size, memoryview(content)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
        if durable:
            os.fsync(descriptor)
    except OSError as error:
        if len(left) < len(content):
            os.ftruncate(descriptor, size)
        problem = f"{path} cannot be written ({error.strerror})"
        raise OSError(error.errno, f"{problem}. Make room on its disk, and run again.") from error


def sweep_unfinished(folder: Path) -> list[Path]:
    """Delete files and directories under construction that killed processes left."""
    removed: list[Path] = []
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError):  # its writer was faster, or it went with its folder
            if _UNFINISHED.fullmatch(path.name) and _take(path):
                removed.append(path)
    return removed


def unfinished_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


@contextmanager
def claimed_file(path: Path) -> Generator[tuple[Path, IO[bytes]]]:
    """A new locked file next to `path`, deleted when the block ends, or by a sweep after a kill. One that a sweep took
    before it was locked is made again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        staged = unfinished_name(path)
        descriptor = os.open(staged, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)  # NFS locks what it may read
        if _locked(staged, descriptor):
            break
        os.close(descriptor)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield staged, stream
    finally:
        staged.unlink(missing_ok=True)


@contextmanager
def claimed_folder(path: Path) -> Generator[Path]:
    """A private directory next to `path`, deleted when the block ends, or by a sweep after a kill."""
    folder = unfinished_name(path)
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        if _locked(folder, descriptor):
            break
        os.close(descriptor)
    try:
        yield folder
    finally:
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def _locked(path: Path, descriptor: int) -> bool:
    """Lock a new file; False if a sweep took it."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())


def _take(path: Path) -> bool:
    is_writable = path.is_file() and os.access(path, os.W_OK)
    mode = os.O_RDWR if is_writable else os.O_RDONLY  # NFS gives an exclusive lock of a file to writers alone
    descriptor = os.open(path, mode | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def sync_path(path: Path) -> None:
    """Make a file, or a directory's names, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor, path)
    finally:
        os.close(descriptor)


def sync(descriptor: int, path: Path) -> None:
    """Make an open file durable. The OSError of a failing disk names the file."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
