"""The gateway's process: `python -m pipeline.rollout.gateway SETTINGS ROOT`. SIGHUP restarts its workers one by one,
each once its successor answers; SIGTERM ends them after what they are answering."""

import functools
import json
import os
import socket
import sys
from pathlib import Path

import uvicorn
from uvicorn.supervisors import Multiprocess

from pipeline.core import layout
from pipeline.core.redaction import guard_output
from pipeline.core.storage import Store
from pipeline.rollout.gateway.app import create
from pipeline.rollout.gateway.counters import forget_counts
from pipeline.rollout.gateway.process import GatewayAddress, GatewaySettings, held_lock

GRACE_S = 30
"""That answers under way have at the end of a worker."""
BACKLOG = 2048


def serve(settings: GatewaySettings) -> None:
    """Answer until SIGTERM. Raises ValueError where the model has a gateway already, OSError for a taken port."""
    store = Store(settings.root)
    folder = store.path(layout.gateway(settings.model_name))
    with socket.socket() as listener, held_lock(folder) as publish:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", settings.port))
        listener.listen(BACKLOG)
        listener.set_inheritable(True)
        forget_counts(store, settings.model_name)
        publish(GatewayAddress(url=f"http://127.0.0.1:{listener.getsockname()[1]}", pid=os.getpid()))
        config = uvicorn.Config(
            functools.partial(create, settings, os.getpid()),
            factory=True,
            workers=settings.workers,
            lifespan="on",
            ws="none",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=GRACE_S,
            timeout_worker_healthcheck=30,
            log_level="warning",
        )
        Multiprocess(config, sockets=[listener]).run()


if __name__ == "__main__":
    guard_output()
    try:
        serve(GatewaySettings.model_validate({**json.loads(Path(sys.argv[1]).read_bytes()), "root": sys.argv[2]}))
    except (ValueError, OSError) as error:
        sys.exit(str(error))
