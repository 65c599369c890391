"""The keys that marks of users are made with: from the environment, or from a file outside the data root.

A mark stands for a user in records that outlive the user's rows. It is an HMAC-SHA-256 of a digest of the id, made over
with each further key: so a mark can be taken to a newer key by who does not know whose it is, and who has one of the
keys alone, or all of them but the newest, can recognise nobody. Owns reading, making and adding keys, and the form of a
mark, `<id of the newest key>-<32 hex digits>`. Refuses to know where marks stand.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pipeline.unfinished import replacing

LEAST_BYTES = 16
_UNKEYED = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class KeyChain:
    """The keys, oldest first. Its repr shows none."""

    keys: tuple[bytes, ...] = field(repr=False)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Of each key with those before it: 8 hex digits that tell nothing of the key."""
        ids: list[str] = []
        for key in self.keys:
            ids.append(_hmac(key, f"id of a key after {ids[-1] if ids else 'none'}")[:8])
        return tuple(ids)

    @property
    def newest(self) -> str:
        return self.ids[-1]

    def marks(self, user_hash: str) -> tuple[str, ...]:
        """Every mark of a user that a store may still have, oldest key first; the last one is the one to write."""
        marks = [user_hash]
        for key, id in zip(self.keys, self.ids, strict=True):
            marks.append(f"{id}-{_hmac(key, marks[-1])[:32]}")
        return tuple(marks)

    def mark(self, user_hash: str) -> str:
        return self.marks(user_hash)[-1]

    def raised(self, mark: str) -> str:
        """A mark as the newest key makes it; one of keys that are not here stays as it is."""
        id = key_of(mark)
        if id and id not in self.ids:
            return mark
        first = self.ids.index(id) + 1 if id else 0
        for key, own in zip(self.keys[first:], self.ids[first:], strict=True):
            mark = f"{own}-{_hmac(key, mark)[:32]}"
        return mark


def key_of(mark: str) -> str:
    """The id of the newest key of a mark; "" for one of a version that had no keys."""
    return "" if _UNKEYED.fullmatch(mark) else mark.partition("-")[0]


class MarkKeys:
    """Where a deployment's keys are. Nothing is read before they are needed."""

    def __init__(self, given: str = "", file: str | Path = "", *, is_made: bool = False) -> None:
        """`given`: the keys themselves, hexadecimal, oldest first, divided by white space. `file`: else the file with a
        key on each line, made at the first use where `is_made`."""
        self._given, self._is_made = given, is_made
        self.file = None if given or not str(file) else Path(file).absolute()

    @property
    def place(self) -> str:
        """For a person."""
        return str(self.file or "PREFERENCE_TUNING_MARK_KEYS")

    def chain(self, outside: Path, *, new: bool = False) -> KeyChain:
        """The keys. `outside`: the data root, in which they may not lie. `new`: there may be none yet.

        Raises ValueError when there are none, or something else stands where they should.
        """
        if self.file is None:
            if not self._given:
                raise ValueError(
                    "This data root was opened without the keys of its marks, and a user is to be recognised. Name "
                    "them by PREFERENCE_TUNING_MARK_KEYS or PREFERENCE_TUNING_MARK_KEY_FILE."
                )
            return KeyChain(_keys(self._given, self.place))
        if self.file.resolve().is_relative_to(outside.resolve()):
            raise ValueError(
                f"The keys of marks are in {self.file}, inside the data root: whoever has a backup would have both. "
                "Move the file, and name it by PREFERENCE_TUNING_MARK_KEY_FILE."
            )
        if not self.file.exists():
            if not (new and self._is_made):
                raise ValueError(
                    f"There is no {self.file}, and without its keys nobody who was forgotten can be recognised. "
                    "Restore it, or name its copy by PREFERENCE_TUNING_MARK_KEY_FILE. If it is lost: "
                    "docs/operations.md, Keys."
                )
            self._make()
        return KeyChain(_keys(self.file.read_text(), self.place))

    def add(self) -> None:
        """Draw one more key, the newest from now on. Raises ValueError where the environment holds the keys."""
        if self.file is None:
            raise ValueError(
                "The keys are in PREFERENCE_TUNING_MARK_KEYS: add the new one there, after the others (openssl rand "
                "-hex 32), and run `pt governance rekey` without --new."
            )
        with self.file.open("r+") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            before = stream.read()
            mode = os.fstat(stream.fileno()).st_mode & 0o777
            with replacing(self.file) as written:
                os.fchmod(written.fileno(), mode)
                written.write(f"{before.rstrip()}\n{secrets.token_hex(32)}\n".encode())

    def _make(self) -> None:
        """A file with one key; of two processes that make it, one is first, and its key is both's."""
        assert self.file is not None, "keys of the environment are not made"
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        staged = self.file.with_name(f".{self.file.name}.{secrets.token_hex(16)}")
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as stream:
                stream.write(f"# Marks of users are made with this: keep a copy where no backup of data is.\n"
                             f"{secrets.token_hex(32)}\n")  # fmt: skip
                stream.flush()
                os.fsync(stream.fileno())
            try:
                os.link(staged, self.file)
            except FileExistsError:
                return
        finally:
            staged.unlink(missing_ok=True)


def _keys(text: str, place: str) -> tuple[bytes, ...]:
    words: Sequence[str] = [
        word for line in text.splitlines() if not line.lstrip().startswith("#") for word in line.split()
    ]
    try:
        keys = tuple(bytes.fromhex(word) for word in words)
    except ValueError:
        keys = ()
    if not keys or min(map(len, keys)) < LEAST_BYTES:
        raise ValueError(
            f"{place} has to hold keys of at least {LEAST_BYTES} bytes in hexadecimal, oldest first: openssl rand "
            "-hex 32"
        )
    return keys


def _hmac(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
