"""`pt ui` (`make ui`): Dagster and MLflow side by side on 127.0.0.1 until Ctrl-C or SIGTERM, from one process that
ends both.

Refuses to listen anywhere else: neither of the two asks for a password. Both listen on Unix sockets in a folder of one
user, and a proxy before each lets nobody in but a browser that opened its one-time link (pipeline/front_proxy). Both
start processes that outlive them, so each has a session of its own, which ends with this process however that ends: a
guard, forked from it, sees to it. Runs that the daemon launched are in sessions of their own too and go on, as they do
without a UI.
"""

import argparse
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import NoReturn

from assets.environment import environment
from assets.resources import deployment
from pipeline import layout
from pipeline.processes import die_with_parent, end_sessions
from pipeline.registry.tracking import SQLITE

HOST = "127.0.0.1"
PORTS = {name: int(port) for name, port in environment().ports.items()}
GRACE_S = 20.0
"""What the servers get to end by themselves: Dagster's daemon says in it that it is no longer there to take runs."""
TAIL = 20
DEFAULTS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""For variables that are not set. Without the second, MLflow's pages report what is clicked."""
MAKE_DATABASE = "import sys; from pipeline.registry.tracking import ensure_database; ensure_database(sys.argv[1])"
"""In a process of its own: MLflow imports polars, whose handler of SIGINT has a wait go on after Ctrl-C."""


class UiServer:
    """One of the two or its proxy, in a session of its own; its output goes on to the terminal."""

    def __init__(self, name: str, command: list[str]):
        self.name, self.tail = name, deque[str](maxlen=TAIL)
        self.process = subprocess.Popen(
            command,
            env={**DEFAULTS, **os.environ, "PYTHONUNBUFFERED": "1"},
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


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt ui", description=__doc__)
    options.add_argument("--with-parent", action="store_true", help="end when the process that started this one ends")
    return options


def main(arguments: Sequence[str] = ()) -> int:
    if parser().parse_args(arguments).with_parent:  # make, which a SIGKILL ends without a word to us
        die_with_parent(signal.SIGTERM)
    for name, port in PORTS.items():
        if not _is_free(port):
            print(f"Port {port} is in use. End what listens there, or choose another: {name}_PORT={port + 1} make ui")
            return 1
    # A shell without job control starts us ignoring SIGINT, and so would the servers: handled here, it is theirs again.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup means it
            signal.signal(number, signal.default_int_handler)
    servers: list[UiServer] = []
    guard, sockets = 0, tempfile.mkdtemp(prefix="ui-")  # 0700
    try:
        guard, guarded = _start_guard(sockets)
        print("Open these links, each in one browser. Ctrl-C ends both.", flush=True)
        for name, command in _commands(sockets).items():
            servers.append(UiServer(name, command))
            os.write(guarded, f"{servers[-1].process.pid}\n".encode())
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # not reaped: its pid stays its own
    except KeyboardInterrupt:
        return 0
    finally:
        ended = [server for server in servers if server.process.poll() is not None]
        end_sessions([server.process.pid for server in servers], signal.SIGINT, GRACE_S)
        if guard:
            os.kill(guard, signal.SIGKILL)
        shutil.rmtree(sockets, ignore_errors=True)
    for server in ended:
        server.copier.join()
        status = server.process.returncode
        print(f"{server.name} ended with status {status}, so everything was ended. Its last lines:")
        print("".join(server.tail), end="")
    if not ended:
        print("The guard of the two servers was killed, so everything was ended. Start it again: make ui")
    return 1


def _commands(sockets: str) -> dict[str, list[str]]:
    settings = deployment()
    settings.store().path(layout.MLFLOW).mkdir(parents=True, exist_ok=True)
    if settings.tracking_uri().startswith(SQLITE):
        subprocess.run([sys.executable, "-c", MAKE_DATABASE, settings.tracking_uri()], check=False)
    artifacts = settings.store().path(layout.MLFLOW_ARTIFACTS)
    dagster = [sys.executable, "-m", "jobs.dagster_dev", _socket(sockets, "DAGSTER")]
    dagster += ["-h", HOST, "-p", str(PORTS["DAGSTER"])]
    mlflow = [str(Path(sys.executable).parent / "mlflow"), "server", "--host", HOST, "--port", str(PORTS["MLFLOW"])]
    mlflow += ["--workers", "1", "--uvicorn-opts", f"--uds {shlex.quote(_socket(sockets, 'MLFLOW'))}"]
    mlflow += ["--backend-store-uri", settings.tracking_uri(), "--artifacts-destination", str(artifacts)]
    proxies = {f"The proxy of {name}": _proxy(sockets, name) for name in ("Dagster", "MLflow")}
    return {"Dagster": dagster, "MLflow": mlflow, **proxies}


def _socket(sockets: str, name: str) -> str:
    return str(Path(sockets, f"{name.lower()}.sock"))


def _proxy(sockets: str, name: str) -> list[str]:
    """What listens on the port, and asks whoever comes for the cookie of a link that it has printed."""
    port = PORTS[name.upper()]
    hosts = [f"{host}:{port}" for host in (HOST, "localhost")]
    command = [sys.executable, "-m", "pipeline.front_proxy", "--listen", f"{HOST}:{port}", "--sign-in", name]
    command += ["--hosts", ",".join(hosts), "--origins", ",".join(f"http://{host}" for host in hosts)]
    return [*command, "--to", f"unix:{_socket(sockets, name)}"]


def _start_guard(sockets: str) -> tuple[int, int]:
    """The guard's pid, and where to write the pid of every session that is to end with this process."""
    sessions, guarded = os.pipe()
    guard = os.fork()
    if guard == 0:
        os.close(guarded)
        _guard(sessions, sockets)
    os.close(sessions)
    return guard, guarded


def _guard(sessions: int, sockets: str) -> NoReturn:
    """Wait for the parent's end, which closes the pipe, and end what it has left. `sockets`: the folder of them."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with os.fdopen(sessions) as pipe:
            leaders = [int(line) for line in pipe]
        end_sessions(leaders, signal.SIGINT, GRACE_S)
        shutil.rmtree(sockets, ignore_errors=True)
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
    sys.exit(main(sys.argv[1:]))
