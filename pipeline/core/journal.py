"""Append-only journals of what was computed or paid for, one JSON line an entry. An entry is in the file once `add`
returns. Readers skip a last line that a kill cut, and the next writer removes it."""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from pydantic import BaseModel

from pipeline.core.removal import Removal, of_lines
from pipeline.core.storage import Store, append_to, held_lines, sync


class JournalEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    key: str
    """Digest of all that decided the entry: entries of one key are interchangeable."""
    owner: str | None = None
    """Forgetting this owner removes the line."""
    digest: str = ""
    """Digest of what the entries of one file have in common."""
    again: bool = False
    """Another attempt may do better: the entry counts only where the key has no other."""


class _OwnerOnly(msgspec.Struct):
    owner: str | None = None


E = TypeVar("E", bound=JournalEntry)


class Journal(Generic[E]):
    """One file of entries of one kind. Without `descriptor` each `add` takes the file's lock for itself."""

    def __init__(self, path: Path, kind: type[E], digest: str = "", descriptor: int | None = None) -> None:
        self._path, self._kind, self._digest, self._descriptor = path, kind, digest, descriptor

    def read(self) -> list[E]:
        """Raises ValueError for a line that is no such entry, or has another digest."""
        return list(read(self._path, self._kind, self._digest))

    def add(self, *entries: E) -> None:
        """Raises OSError where the disk does not take them whole; then it has none of them."""
        lines = b"".join(_encode(msgspec.structs.replace(each, digest=self._digest)) + b"\n" for each in entries)
        with held_lines(self._path) if self._descriptor is None else nullcontext(self._descriptor) as descriptor:
            append_to(descriptor, self._path, lines)


@contextmanager
def open_journal(path: Path, kind: type[E], digest: str = "") -> Generator[Journal[E]]:
    """The journal, under its lock until the block ends."""
    with held_lines(path) as descriptor:
        yield Journal(path, kind, digest, descriptor)
        sync(descriptor, path)


def read(path: Path, kind: type[E], digest: str | None = None) -> Iterator[E]:
    """The whole lines of a journal, without its lock. `digest`: None for any. Raises ValueError as `Journal.read`."""
    if not path.is_file():
        return
    decoder = msgspec.json.Decoder(kind, dec_hook=lambda of, value: of.model_validate(value))
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            entry, problem = None, f"is no {kind.__name__}"
            with suppress(ValueError):
                entry = decoder.decode(line)
                problem = "" if digest in (None, entry.digest) else f"has the digest {entry.digest[:12]!r}"
            if entry is None or problem:
                left = "Move the file away: what it holds is then asked for again."
                raise ValueError(f"Line {number} of {path} {problem}. {left}")
            yield entry


def latest(entries: Iterable[E]) -> dict[str, E]:
    """By key; of several entries the first without `again`, else the last."""
    found: dict[str, E] = {}
    for entry in entries:
        if entry.key not in found or found[entry.key].again:
            found[entry.key] = entry
    return found


def forget(
    store: Store, paths: Iterable[Path], owners: Collection[str], left: Callable[[bytes], bytes] = lambda line: b""
) -> Iterator[Removal]:
    """The lines of these owners in these journals. `left`: what stays of a line (by default nothing)."""
    marks = [b'"owner":' + msgspec.json.encode(owner) for owner in owners]

    def goes(line: bytes) -> bool:
        try:
            return msgspec.json.decode(line, type=_OwnerOnly).owner in owners
        except msgspec.MsgspecError:  # a line that a kill cut
            return any(mark in line for mark in marks)

    for path in sorted(paths):
        yield from of_lines(store, path, goes, left)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"a {type(value).__name__}")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
