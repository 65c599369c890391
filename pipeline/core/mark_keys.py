"""The key of the marks of users, from the environment or a file outside the data root. A mark stands for a forgotten
user: `<id of the key>-<32 hex digits>`, an HMAC-SHA-256 of a digest of the user's id."""

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

LEAST_BYTES = 16


@dataclass(frozen=True)
class MarkKey:
    key: bytes = field(repr=False)

    @cached_property
    def id(self) -> str:
        return self._hmac("id of a key")[:8]

    def mark(self, user_hash: str) -> str:
        return f"{self.id}-{self._hmac(user_hash)[:32]}"

    def _hmac(self, text: str) -> str:
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


def key_of(mark: str) -> str:
    return mark.partition("-")[0]


class MarkKeys:
    """Where a deployment's key is; it is read when it is needed."""

    def __init__(self, given: str = "", file: str | Path = "", *, is_made: bool = False) -> None:
        """`given`: the key in hexadecimal. `file`: else the file that holds it, made at the first use if `is_made`."""
        self._given, self._is_made = given, is_made
        self.file = None if given or not str(file) else Path(file).absolute()

    @property
    def place(self) -> str:
        return str(self.file or "PREFERENCE_TUNING_MARK_KEYS")

    def key(self, outside: Path, *, new: bool = False) -> MarkKey:
        """Raises ValueError when there is no key, or no valid one. `outside`: the data root, in which the file may not
        lie. `new`: there may be none yet."""
        try:
            return self._key(outside, new)
        except OSError as error:
            raise ValueError(
                f"The key of the marks of forgotten users cannot be read or kept in {self.place} ({error.strerror}). "
                "Put it into another file (the key that was used before, else that of openssl rand -hex 32), and name "
                "that by PREFERENCE_TUNING_MARK_KEY_FILE."
            ) from error

    def _key(self, outside: Path, new: bool) -> MarkKey:
        if self.file is None:
            return self._read(self._given)
        if self.file.resolve().is_relative_to(outside.resolve()):
            raise ValueError(
                f"The key of marks is in {self.file}, inside the data root: whoever has a backup would have both. "
                "Move the file, and name it by PREFERENCE_TUNING_MARK_KEY_FILE."
            )
        if new and self._is_made and not self.file.exists():
            self._make(self.file)
        return self._read(self.file.read_text(encoding="utf-8"))

    def _read(self, text: str) -> MarkKey:
        words = [word for line in text.splitlines() if not line.lstrip().startswith("#") for word in line.split()]
        try:
            key = bytes.fromhex(words[0]) if len(words) == 1 else b""
        except ValueError:
            key = b""
        if len(key) < LEAST_BYTES:
            raise ValueError(
                f"{self.place} has to hold one key of at least {LEAST_BYTES} bytes in hexadecimal (openssl rand -hex "
                "32), or PREFERENCE_TUNING_MARK_KEY_FILE to name its file: without it no forgotten user is recognised."
            )
        return MarkKey(key)

    def _make(self, file: Path) -> None:
        """Create the file with a new key; if two processes do so, both use the key of the first."""
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        staged = file.with_name(f".{file.name}.{secrets.token_hex(16)}")
        with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            stream.write("# Marks of users are made with this: keep a copy where no backup of data is.\n")
            stream.write(f"{secrets.token_hex(32)}\n")
            stream.flush()
            os.fsync(stream.fileno())
        try:
            with suppress(FileExistsError):
                os.link(staged, file)
        finally:
            staged.unlink()
