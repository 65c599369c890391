"""Files and directories under construction: named apart, locked while they are written, swept where a kill left them;
and the locks of files. Locks hold on every machine that shares the directory."""

import fcntl
import os
import re
import shutil
import stat
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{32}")


@contextmanager
def replacing(path: Path) -> Generator[IO[bytes]]:
    """A stream whose content replaces `path`, durably, when the block succeeds. An existing mode is kept."""
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
    sync_path(path.parent)


@contextmanager
def locked(path: Path, how: int = fcntl.LOCK_EX) -> Generator[None]:
    """Hold the lock of a file, made if there is none, until the block ends; the kernel drops it with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r" if how == fcntl.LOCK_SH and path.exists() else "a") as handle:
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


def append(path: Path, content: bytes) -> None:
    with held(path) as descriptor:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]


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


def claimed_file(path: Path) -> tuple[Path, int]:
    """A new locked file beside `path`. One that a sweep took before it was locked is made again."""
    while True:
        staged = unfinished_name(path)
        descriptor = os.open(staged, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)  # NFS locks what it may read
        if _locked(staged, descriptor):
            return staged, descriptor
        os.close(descriptor)


@contextmanager
def claimed_folder(folder: Path) -> Generator[None]:
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
