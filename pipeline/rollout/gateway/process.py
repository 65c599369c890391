"""A gateway that runs while a block does: started as processes of this machine, awaited, ended with all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

from pipeline.core import layout
from pipeline.core.storage import Store, write_atomically
from pipeline.rollout.gateway.lock import running_address
from pipeline.rollout.gateway.settings import GatewaySettings
from pipeline.serving.ports import held_port
from pipeline.serving.server_process import server_process

START_TIMEOUT_S = 60.0


class RunningGateway:
    """A gateway that answers."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        """Root, without `/v1`."""
        self.pid = pid
        """Of its supervisor: SIGHUP restarts the workers one by one."""


@contextmanager
def running_gateway(settings: GatewaySettings, log: Callable[[str], None]) -> Generator[RunningGateway]:
    """Serve until the block ends. Raises RuntimeError, with what the gateway wrote, when it does not start: another one
    runs for this model, or somebody has the port."""
    store = Store(settings.root)
    folder = store.path(layout.gateway(settings.model_name))
    with ExitStack() as stack:
        if not settings.port:
            held = stack.enter_context(held_port())
            settings = settings.model_copy(update={"port": held.getsockname()[1]})
        path = folder / "settings.json"
        write_atomically(path, settings.model_dump_json(exclude={"root"}))  # no file says where the root lies
        command = [sys.executable, "-m", "pipeline.rollout.gateway", str(path), settings.root]
        process = stack.enter_context(server_process("The gateway", command, {}, folder, log))
        url = f"http://127.0.0.1:{settings.port}"
        process.await_health(f"{url}/health", START_TIMEOUT_S)
        address = running_address(folder)
        if address is None or address.url != url:
            raise process.failure(f"does not listen at {url}: another server does")
        log(f"gateway: {url}/v1 answers for {settings.model_name}")
        yield RunningGateway(url, address.pid)
