"""`make ui`: Dagster and MLflow side by side on 127.0.0.1 until Ctrl-C, from one process that ends both.

Refuses to listen anywhere else: neither of the two asks for a password.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from assets.resources import deployment

HOST = "127.0.0.1"
PORTS = {name: int(os.environ.get(f"{name}_PORT", default)) for name, default in (("DAGSTER", 3000), ("MLFLOW", 5000))}


def main() -> int:
    for name, port in PORTS.items():
        if not _is_free(port):
            print(f"Port {port} is in use. End what listens there, or choose another: {name}_PORT={port + 1} make ui")
            return 1
    settings = deployment()
    settings.store().path("mlflow").mkdir(parents=True, exist_ok=True)
    artifacts = settings.store().path("mlflow", "artifacts")
    dagster = f"dagster dev -h {HOST} -p {PORTS['DAGSTER']}".split()
    mlflow = f"mlflow server --host {HOST} --port {PORTS['MLFLOW']} --workers 1".split()
    mlflow += ["--backend-store-uri", settings.tracking_uri(), "--artifacts-destination", str(artifacts)]
    bin_folder = Path(sys.executable).parent
    commands = [[str(bin_folder / name), *arguments] for name, *arguments in (dagster, mlflow)]
    children = [subprocess.Popen(command, preexec_fn=_take_interrupts) for command in commands]
    places = "    ".join(f"{name.capitalize()} http://{HOST}:{port}" for name, port in PORTS.items())
    print(f"{places}    Ctrl-C ends both", flush=True)
    try:
        os.wait()
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        for child in children:
            child.send_signal(signal.SIGINT)
        for child in children:
            child.wait()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _take_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell without job control starts us ignoring it


if __name__ == "__main__":
    sys.exit(main())
