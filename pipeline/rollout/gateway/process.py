"""What one gateway is started with, the lock that a running one holds with its address (the kernel drops it with the
process), and a gateway that runs while a block does."""

import fcntl
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pipeline.core import layout
from pipeline.core.storage import Record, Store, write_atomically
from pipeline.recipe.rollout import GatewayTraffic
from pipeline.serving.server_process import held_port, server_process

TAKE_S = 5.0
"""That a gateway tries to get the lock: readers hold it for a moment."""
_LOCK = "lock"


class GatewayAddress(Record):
    """Where the gateway that holds the lock listens."""

    url: str
    pid: int


@contextmanager
def held_lock(folder: Path) -> Generator[Callable[[GatewayAddress], object]]:
    """Hold the lock of a model's gateway, and publish its address in that file. Raises ValueError where another one
    holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("ab") as handle:
        deadline = time.monotonic() + TAKE_S
        while not _locked(handle.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise ValueError(f"Another gateway runs for {folder.parent.name}. End it, or use that one.")
            time.sleep(0.05)
        handle.truncate(0)

        def publish(address: GatewayAddress) -> None:
            handle.write(address.model_dump_json().encode())
            handle.flush()

        yield publish


def running_address(folder: Path) -> GatewayAddress | None:
    """Where the gateway listens that holds the lock; None where none does. Raises OSError while it is starting."""
    try:
        with (folder / _LOCK).open("rb") as handle:
            if _locked(handle.fileno(), fcntl.LOCK_SH):
                return None
            content = handle.read()
    except FileNotFoundError:
        return None
    if not content:
        raise OSError(f"The gateway of {folder.parent.name} has only begun to start. Ask again.")
    return GatewayAddress.model_validate_json(content)


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class GatewaySettings(Record):
    """One model's gateway. Its split and its slots are files below `root` (core/layout.py), read while it runs."""

    root: str
    model_name: str
    """Names the rollout; callers may ask for any model."""
    traffic: GatewayTraffic = GatewayTraffic()


def on_port(settings: GatewaySettings, port: int) -> GatewaySettings:
    return settings.model_copy(update={"traffic": settings.traffic.model_copy(update={"port": port})})


START_TIMEOUT_S = 60.0


@contextmanager
def running_gateway(settings: GatewaySettings, log: Callable[[str], None]) -> Generator[GatewayAddress]:
    """Serve until the block ends. Raises RuntimeError, with what the gateway wrote, when it does not start: another one
    runs for this model, or somebody has the port."""
    store = Store(settings.root)
    folder = store.path(layout.gateway(settings.model_name))
    with ExitStack() as stack:
        if not settings.traffic.port:
            held = stack.enter_context(held_port())
            settings = on_port(settings, held.getsockname()[1])
        path = folder / "settings.json"
        write_atomically(path, settings.model_dump_json(exclude={"root"}))  # no file says where the root lies
        command = [sys.executable, "-m", "pipeline.rollout.gateway", str(path), settings.root]
        process = stack.enter_context(server_process("The gateway", command, {}, folder))
        url = f"http://127.0.0.1:{settings.traffic.port}"
        process.await_health(f"{url}/health", START_TIMEOUT_S)
        address = running_address(folder)
        if address is None or address.url != url:
            raise process.failure(f"does not listen at {url}: another server does")
        log(f"gateway: {url}/v1 answers for {settings.model_name}")
        yield address
