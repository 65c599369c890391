"""The gateway's process: `python -m pipeline.rollout.gateway SETTINGS ROOT`. SIGTERM ends it after what it is
answering."""

import json
import os
import socket
import sys
from pathlib import Path

import uvicorn

from pipeline.core import layout
from pipeline.core.redaction import guard_output
from pipeline.core.storage import Store
from pipeline.rollout.gateway.app import application
from pipeline.rollout.gateway.process import GatewayAddress, GatewaySettings, held_lock

GRACE_S = 30
"""For answers under way when it ends."""
BACKLOG = 2048


def serve(settings: GatewaySettings) -> None:
    """Answer until SIGTERM. Raises ValueError where the model has a gateway already, OSError for a taken port."""
    folder = Store(settings.root).path(layout.gateway(settings.model_name))
    with socket.socket() as listener, held_lock(folder) as publish:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", settings.traffic.port))
        listener.listen(BACKLOG)
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
        uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    guard_output()
    try:
        serve(GatewaySettings.model_validate({**json.loads(Path(sys.argv[1]).read_bytes()), "root": sys.argv[2]}))
    except (ValueError, OSError) as error:
        sys.exit(str(error))
