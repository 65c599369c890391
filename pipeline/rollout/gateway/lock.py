"""The lock that a running gateway holds, and its address: who holds no lock routes nothing.

The kernel drops the lock with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from pipeline.core.storage import Record, write_atomically

TAKE_S = 5.0
"""That a gateway tries to get the lock: readers hold it for a moment."""
_LOCK, _ADDRESS = "lock", "address.json"


class GatewayAddress(Record):
    """Where the gateway that holds the lock listens."""

    url: str
    """Root, without `/v1`."""
    pid: int


@contextmanager
def held_lock(folder: Path) -> Generator[Callable[[GatewayAddress], object]]:
    """Hold the lock of a model's gateway, and publish its address. Raises ValueError where another one holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a") as handle:
        deadline = time.monotonic() + TAKE_S
        while not _locked(handle.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise ValueError(f"Another gateway runs for {folder.parent.name}. End it, or use that one.")
            time.sleep(0.05)
        address = folder / _ADDRESS
        address.unlink(missing_ok=True)
        yield lambda listening: write_atomically(address, listening.model_dump_json())


def running_address(folder: Path) -> GatewayAddress | None:
    """Where the gateway listens that holds the lock; None where nobody does. Raises OSError while it is starting."""
    try:
        with (folder / _LOCK).open("rb") as handle:
            if _locked(handle.fileno(), fcntl.LOCK_SH):
                return None
        return GatewayAddress.model_validate_json((folder / _ADDRESS).read_bytes())
    except FileNotFoundError as error:
        if error.filename is not None and str(error.filename).endswith(_LOCK):
            return None
        raise OSError(f"The gateway of {folder.parent.name} has only begun to start. Ask again.") from error


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
