"""Files and directories under construction: named apart, locked while they are written, swept where a kill left them.

Owns that name and the locks: of what is written, and of a file that some append to and others write anew. Refuses to
take what a living process holds, on any machine that shares the directory.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import stat
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{32}")


@contextmanager
def replacing(path: Path) -> Generator[IO[bytes]]:
    """A stream whose content replaces `path` in one step when the block ends well, and is nothing when it doesn't.

    It is locked while it is written: `sweep_unfinished` takes what a kill left, and nothing else. A file that was there
    keeps its mode.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    staged, descriptor = claimed_file(path)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            with suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode))
            yield stream
            stream.flush()
            sync(stream.fileno(), path)
            staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
    sync_dir(path.parent)


@contextmanager
def held(path: Path) -> Generator[int]:
    """A descriptor of the file to append by, alone with it; of the file that is there once the wait is over, not of one
    that it replaced. Made where there is none. Of a file that this user may not write, a descriptor to read by."""
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


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file, after whoever holds it and is writing it anew."""
    with held(path) as descriptor:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]


def sweep_unfinished(folder: Path) -> list[Path]:
    """Delete what killed writers left below a folder: files and directories under construction, and sockets that
    nobody listens at. What a living process writes is left alone."""
    removed: list[Path] = []
    for path in sorted(folder.rglob("*")):
        try:
            mode = path.lstat().st_mode
            dead = _is_deaf(path) if stat.S_ISSOCK(mode) else bool(_UNFINISHED.fullmatch(path.name)) and _take(path)
        except FileNotFoundError:  # its writer was faster, or it went with its folder
            continue
        if dead:
            removed.append(path)
    return removed


def unfinished_name(path: Path) -> Path:
    """Beside `path`, for what is to become it."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def claimed_file(path: Path) -> tuple[Path, int]:
    """A new file beside `path`, locked. One that a sweep took between making and locking is made again."""
    while True:
        staged = unfinished_name(path)
        descriptor = os.open(staged, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)  # NFS locks what it may read
        if _locked(staged, descriptor):
            return staged, descriptor
        os.close(descriptor)


@contextmanager
def claimed_folder(folder: Path) -> Generator[None]:
    """Make a directory and hold it against sweeps until the block ends."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        if _locked(folder, descriptor):
            break
        os.close(descriptor)
    try:
        yield
    finally:
        os.close(descriptor)


def _locked(path: Path, descriptor: int) -> bool:
    """Take the lock of a file that was just made; False if it is not there any more."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())


def _take(path: Path) -> bool:
    """Delete a file or directory unless a process holds it."""
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


def _is_deaf(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return True
        except OSError:  # a path that is too long, or somebody who is busy: not ours to judge
            return False
    return False


def sync_dir(path: Path) -> None:
    """Make a directory's names durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor, path)
    finally:
        os.close(descriptor)


def sync(descriptor: int, path: Path) -> None:
    """Make an open file durable. A failing disk's OSError names the file, as the kernel's does not."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
