"""Who is at work on a data root, by host: and a refusal where the locks of another host cannot be seen.

Every lock below the root is flock's. On a local disk, on NFS 4 and on Lustre mounted with `flock` a host sees the
others' locks; on other mounts each host has locks of its own, and two would write as if each were alone. So who works
leaves a file with host, boot, process and a heartbeat, and holds its lock: a heartbeat that goes on under a lock which
is free from here proves that locks are not shared. Owns that proof. Refuses to stand in for the locks, and to tell
where all hosts see them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline import layout
from pipeline.processes import process_start
from pipeline.storage import Record, Store

BEAT_S = 5.0
DEAD_AFTER_S = 20.0
"""Without a heartbeat, by the clock of whoever looks on, which is never set: four of them were missed."""
POLL_S = 0.2
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class HostProcess(Record):
    """A process at work. Its heartbeat is the time of its file, which the file system's own clock gives."""

    host: str
    boot: str
    """The kernel's: another one after each start of the machine."""
    space: str
    """The process ids' namespace: a pid says nothing in another one."""
    pid: int
    start: int

    def is_here(self, here: HostProcess) -> bool:
        """Whether its pid can be looked up."""
        return (self.boot, self.space) == (here.boot, here.space)


def this_process() -> HostProcess:
    return HostProcess(
        host=socket.gethostname(),
        boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        space=str(Path("/proc/self/ns/pid").readlink()),
        pid=os.getpid(),
        start=process_start(os.getpid()) or 0,
    )


@contextmanager
def at_work(store: Store, here: HostProcess | None = None) -> Generator[None]:
    """Be at work on the root until the block ends.

    Raises ValueError where locks cannot be had at all, where the disk is full, and where another host is at work and
    its locks are not seen. One that may have just died is waited for, DEAD_AFTER_S at the most.
    """
    here = here or this_process()
    folder = store.path(layout.AT_WORK)
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / f"{here.host}-{here.pid}-{os.urandom(4).hex()}.json"
    descriptor = os.open(own, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(descriptor, ended), daemon=True)
    try:
        _lock_own(descriptor, store)
        _write_own(descriptor, here, store)  # after the lock: an empty file is nobody's yet
        beating.start()
        _refuse_unseen(folder, own, here, store)
        yield
    finally:
        ended.set()
        if beating.is_alive():
            beating.join()
        own.unlink(missing_ok=True)
        os.close(descriptor)


def _beat(descriptor: int, ended: threading.Event) -> None:
    while not ended.wait(BEAT_S):
        with suppress(OSError):  # a file system that is away for a moment
            os.utime(descriptor)


def _lock_own(descriptor: int, store: Store) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # somebody looks at it right now, and lets go
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        raise ValueError(
            f"{store.root} is on a file system without locks ({error.strerror}). Put the data root on a local disk, on "
            "NFS 4, or on Lustre mounted with `flock`."
        ) from error


def _write_own(descriptor: int, here: HostProcess, store: Store) -> None:
    try:
        os.write(descriptor, here.model_dump_json().encode())
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise ValueError(
            f"There is no room in {store.root} ({error.strerror}). Free space, and type the same command again: it "
            "goes on from what was published."
        ) from error


def _refuse_unseen(folder: Path, own: Path, here: HostProcess, store: Store) -> None:
    """Take away what dead workers left. Raises ValueError for a living one whose lock is not seen."""
    suspects = {path: unseen for path in folder.glob("*.json") if path != own and (unseen := _unseen(path, here))}
    waited_since = time.monotonic()  # no file's time is compared with a clock, which may be set
    while suspects and time.monotonic() - waited_since < DEAD_AFTER_S:
        for path, (worker, beat) in list(suspects.items()):
            try:
                now = path.stat().st_mtime_ns
            except FileNotFoundError:
                del suspects[path]
                continue
            if now != beat:
                raise ValueError(
                    f"{worker.host} (process {worker.pid}) is at work on {store.root}, and its locks are not seen from "
                    f"{here.host}: both would write as if each were alone. Work on one host at a time, or mount the "
                    "data root so that locks are shared (NFS 4 without `nolock`, Lustre with `flock`)."
                )
        time.sleep(POLL_S)
    for path in suspects:
        path.unlink(missing_ok=True)


def _unseen(path: Path, here: HostProcess) -> tuple[HostProcess, int] | None:
    """A worker whose lock is free from here, with its last heartbeat; None where it is held, and where the process is
    known to be dead: its file goes."""
    try:
        beat = path.stat().st_mtime_ns
        if not _is_free(path):
            return None
        worker = HostProcess.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValueError):  # it ended meanwhile, or has just begun
        return None
    if worker.is_here(here) and process_start(worker.pid) != worker.start:
        path.unlink(missing_ok=True)
        return None
    return worker, beat


def _is_free(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR)  # NFS gives an exclusive lock to writers alone
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
