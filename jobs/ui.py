"""`pt ui` (`make ui`): Dagster (code servers, daemon, web server) and MLflow on 127.0.0.1 until Ctrl-C or SIGTERM.

Neither page asks for a password, so they listen nowhere else, and both refuse what pages of other sites send
(jobs/same_origin.py; MLflow's own --allowed-hosts). The servers start processes that outlive them, so each has a
session of its own. All sessions end with this process however that ends: a guard, forked from it, ends them after a
SIGKILL. Runs that the daemon launched have their own sessions and go on.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import NoReturn

from assets.environment import environment
from assets.resources import deployment
from pipeline.core import layout
from pipeline.core.processes import die_with_parent, end_sessions
from pipeline.registry.tracking import SQLITE

HOST = "127.0.0.1"
PORTS = {"DAGSTER": int(environment().dagster_port or 3000), "MLFLOW": int(environment().mlflow_port or 5000)}
GRACE_S = 20.0
"""What the servers get to end by themselves: Dagster's daemon says in it that it is no longer there to take runs."""
POLL_S = 0.1
TAIL = 20
DEFAULTS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""For variables that are not set. Without the second, MLflow's pages report what is clicked."""
MAKE_DATABASE = "import sys; from pipeline.registry.tracking import ensure_database; ensure_database(sys.argv[1])"
"""In a process of its own: MLflow imports polars, whose handler of SIGINT has a wait go on after Ctrl-C."""


class UiServer:
    """A server in a session of its own; its output goes on to the terminal."""

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
    guard = 0
    try:
        with tempfile.TemporaryDirectory(prefix="ui-", ignore_cleanup_errors=True) as folder:
            guard, guarded = _start_guard()
            _serve(servers, guarded, Path(folder, "workspace.yaml"))
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
        print("The guard of the servers was killed, so everything was ended. Start it again: make ui")
    return 1


def _serve(servers: list[UiServer], guarded: int, workspace: Path) -> None:
    """Start the servers, and return when one of them or the guard has ended."""

    def start(name: str, command: list[str]) -> None:
        servers.append(UiServer(name, command))
        os.write(guarded, f"{servers[-1].process.pid}\n".encode())

    start("MLflow", _mlflow())
    start("Dagster's code servers", [sys.executable, "-m", "jobs.code_servers", str(workspace)])
    while not workspace.exists():  # the code loads
        if _has_ended():
            return
        time.sleep(POLL_S)
    options = ["-w", str(workspace)]
    start("Dagster's daemon", [sys.executable, "-m", "dagster._daemon", "run", *options])
    web = ["--host", HOST, "--port", str(PORTS["DAGSTER"])]
    start("Dagster's web server", [sys.executable, "-m", "jobs.webserver", *web, *options])
    print(f"Dagster  http://{HOST}:{PORTS['DAGSTER']}\nMLflow   http://{HOST}:{PORTS['MLFLOW']}\nCtrl-C ends both.")
    sys.stdout.flush()
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # not reaped: its pid stays its own


def _has_ended() -> bool:
    return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _mlflow() -> list[str]:
    settings = deployment()
    settings.store().path(layout.MLFLOW).mkdir(parents=True, exist_ok=True)
    if settings.tracking_uri().startswith(SQLITE):
        subprocess.run([sys.executable, "-c", MAKE_DATABASE, settings.tracking_uri()], check=False)
    command = [str(Path(sys.executable).parent / "mlflow"), "server", "--host", HOST, "--port", str(PORTS["MLFLOW"])]
    command += ["--allowed-hosts", f"{HOST}:*,localhost:*", "--workers", "1"]
    artifacts = settings.store().path(layout.MLFLOW_ARTIFACTS)
    return [*command, "--backend-store-uri", settings.tracking_uri(), "--artifacts-destination", str(artifacts)]


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
    sys.exit(main(sys.argv[1:]))
