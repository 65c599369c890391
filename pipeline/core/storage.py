"""The store: one directory tree in which every stage publishes, each record in one atomic step. Nothing that it writes
names the tree's own path, so the tree can be moved."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from pipeline.core import layout
from pipeline.core.locations import Document, Uri, stored
from pipeline.core.mark_keys import MarkKeys
from pipeline.core.model_files import faults
from pipeline.core.unfinished import claimed_file, claimed_folder, locked, replacing, sync, sync_path, unfinished_name


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
        path.parent.mkdir(parents=True, exist_ok=True)
        staged, descriptor = claimed_file(path)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(to_json(record, Document(path, self.root)).encode())
                stream.flush()
                sync(stream.fileno(), path)
                os.link(staged, path)  # fails if the name is taken: the one portable create-if-absent
        except FileExistsError:
            return False
        finally:
            staged.unlink(missing_ok=True)
        sync_path(path.parent)
        return True

    def read(self, name: str, kind: type[R]) -> R | None:
        """The record under `name`, or None. Raises ValueError when it cannot be read as `kind`."""
        path = self.path(name)
        try:
            text = path.read_text()
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
    def alone(self, name: str) -> Generator[None]:
        with locked(self.path(name)):
            yield

    @contextmanager
    def staged(self, name: str) -> Generator[Path]:
        """A private directory that becomes `name` when the block succeeds, unless `name` exists by then; else it is
        deleted."""
        final = self.path(name)
        final.parent.mkdir(parents=True, exist_ok=True)
        staging = unfinished_name(final)
        try:
            with claimed_folder(staging):
                yield staging
                publish_dir(staging, final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    @contextmanager
    def scratch(self, name: str) -> Generator[Path]:
        """A private directory under `tmp/`, deleted when the block ends, or by a sweep after a kill."""
        folder = unfinished_name(self.path(layout.TMP, name))
        try:
            with claimed_folder(folder):
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


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
    """sha256 over the relative name and sha256 of every file below `path`, in name order."""
    files = {str(f.relative_to(path)): digest_file(f) for f in sorted(path.rglob("*")) if f.is_file()}
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
