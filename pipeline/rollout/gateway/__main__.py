"""The gateway's process: `python -m pipeline.rollout.gateway SETTINGS ROOT`. SIGTERM ends it after what it is
answering."""

import asyncio
import json
import os
import socket
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pipeline.core import layout
from pipeline.core.processes import raise_file_limit
from pipeline.core.redaction import guard_output
from pipeline.core.storage import Store
from pipeline.rollout.gateway.app import application
from pipeline.rollout.gateway.process import GatewayAddress, GatewaySettings, held_lock
from pipeline.rollout.gateway.upstream import most_streams

GRACE_S = 30
"""For answers under way when it ends."""
BACKLOG = 2048
PATIENCE_S = 60.0
"""For a request to come whole, and for a caller to take what waits for them."""


class TimedConnection(HttpToolsProtocol):
    """A caller's. It is cut where they send too slowly, or do not read: that frees the slot, too."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._wait(PATIENCE_S)

    def on_message_begin(self) -> None:
        self._wait(PATIENCE_S)
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._wait(PATIENCE_S if self.flow.write_paused else None)
        super().on_message_complete()

    def pause_writing(self) -> None:
        self._wait(PATIENCE_S)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._wait(None)
        super().resume_writing()

    def _wait(self, seconds: float | None) -> None:
        """Set the deadline anew; without `seconds` there is none."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


class _Server(uvicorn.Server):
    """Lets in the callers for whom there are files; an event loop without files would hang up on them."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        for listener in sockets or ():
            self._accepting = asyncio.create_task(self._accept(listener))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._accepting.cancel()
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        protocol = partial(TimedConnection, self.config, self.server_state, self.lifespan.state)
        loop, most = asyncio.get_running_loop(), most_streams() * 3 // 2
        while True:
            if len(self.server_state.connections) < most:
                with suppress(OSError):
                    caller, _ = await loop.sock_accept(listener)
                    await loop.connect_accepted_socket(protocol, caller)
                    continue
            await asyncio.sleep(0.01)


def serve(settings: GatewaySettings) -> None:
    """Answer until SIGTERM. Raises ValueError where the model has a gateway already, OSError for a taken port."""
    raise_file_limit()
    folder = Store(settings.root).path(layout.gateway(settings.model_name))
    with socket.socket() as listener, held_lock(folder) as publish:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", settings.traffic.port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
        publish(GatewayAddress(url=f"http://127.0.0.1:{listener.getsockname()[1]}", pid=os.getpid()))
        config = uvicorn.Config(
            application(settings),
            lifespan="on",
            ws="none",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=GRACE_S,
            log_level="warning",
        )
        _Server(config).run([listener])


if __name__ == "__main__":
    guard_output()
    try:
        serve(GatewaySettings.model_validate({**json.loads(Path(sys.argv[1]).read_bytes()), "root": sys.argv[2]}))
    except (ValueError, OSError) as error:
        sys.exit(str(error))
