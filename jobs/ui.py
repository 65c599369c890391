"""`make ui`: Dagster and MLflow side by side on 127.0.0.1 until Ctrl-C or SIGTERM, from one process that ends both.

Refuses to listen anywhere else: neither of the two asks for a password. Both start processes that outlive them, so
each has a session of its own, which ends with this process however that ends: a guard, forked from it, sees to it.
Runs that the daemon launched are in sessions of their own too and go on, as they do without a UI.
"""

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path
from threading import Thread
from typing import NoReturn

from assets.environment import environment
from assets.resources import deployment
from pipeline import layout
from pipeline.processes import die_with_parent, end_sessions

HOST = "127.0.0.1"
PORTS = {name: int(port) for name, port in environment().ports.items()}
GRACE_S = 20.0
"""What the servers get to end by themselves: Dagster's daemon says in it that it is no longer there to take runs."""
TAIL = 20


class UiServer:
    """One of the two, in a session of its own; its output goes on to the terminal."""

    def __init__(self, name: str, command: list[str]):
        self.name, self.tail = name, deque[str](maxlen=TAIL)
        self.process = subprocess.Popen(
            command,
            env={"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.copier = Thread(target=self._copy, daemon=True)
        self.copier.start()

    def _copy(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.tail.append(line)
            print(line, end="", flush=True)


def main() -> int:
    for name, port in PORTS.items():
        if not _is_free(port):
            print(f"Port {port} is in use. End what listens there, or choose another: {name}_PORT={port + 1} make ui")
            return 1
    # A shell without job control starts us ignoring SIGINT, and so would the servers: handled here, it is theirs again.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup means it
            signal.signal(number, signal.default_int_handler)
    servers: list[UiServer] = []
    guard = 0
    try:
        guard, guarded = _start_guard()
        for name, command in _commands().items():
            servers.append(UiServer(name, command))
            os.write(guarded, f"{servers[-1].process.pid}\n".encode())
        places = "    ".join(f"{name.capitalize()} http://{HOST}:{port}" for name, port in PORTS.items())
        print(f"{places}    Ctrl-C ends both", flush=True)
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # not reaped: its pid stays its own
    except KeyboardInterrupt:
        return 0
    finally:
        ended = [server for server in servers if server.process.poll() is not None]
        end_sessions([server.process.pid for server in servers], signal.SIGINT, GRACE_S)
        if guard:
            os.kill(guard, signal.SIGKILL)
    for server in ended:
        server.copier.join()
        status = server.process.returncode
        print(f"{server.name} ended with status {status}, so everything was ended. Its last lines:")
        print("".join(server.tail), end="")
    if not ended:
        print("The guard of the two servers was killed, so everything was ended. Start it again: make ui")
    return 1


def _commands() -> dict[str, list[str]]:
    settings = deployment()
    settings.store().path(layout.MLFLOW).mkdir(parents=True, exist_ok=True)
    artifacts = settings.store().path(layout.MLFLOW_ARTIFACTS)
    dagster = f"dagster dev -h {HOST} -p {PORTS['DAGSTER']}".split()
    mlflow = f"mlflow server --host {HOST} --port {PORTS['MLFLOW']} --workers 1".split()
    mlflow += ["--backend-store-uri", settings.tracking_uri(), "--artifacts-destination", str(artifacts)]
    folder = Path(sys.executable).parent
    return {"Dagster": [str(folder / dagster[0]), *dagster[1:]], "MLflow": [str(folder / mlflow[0]), *mlflow[1:]]}


def _start_guard() -> tuple[int, int]:
    """The guard's pid, and where to write the pid of every session that is to end with this process."""
    sessions, guarded = os.pipe()
    guard = os.fork()
    if guard == 0:
        os.close(guarded)
        _guard(sessions)
    os.close(sessions)
    return guard, guarded


def _guard(sessions: int) -> NoReturn:
    """Wait for the parent's end, which closes the pipe, and end what it has left."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with os.fdopen(sessions) as pipe:
            leaders = [int(line) for line in pipe]
        end_sessions(leaders, signal.SIGINT, GRACE_S)
    finally:
        os._exit(0)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


if __name__ == "__main__":
    if sys.argv[1:] == ["--with-parent"]:  # make, which a SIGKILL ends without a word to us
        die_with_parent(signal.SIGTERM)
    sys.exit(main())
