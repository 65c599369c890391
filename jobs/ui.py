"""`pt ui` (`make ui`): Dagster (daemon and web server) and MLflow on 127.0.0.1 until Ctrl-C or SIGTERM.

Neither page asks for a password, so they listen nowhere else, and both refuse what pages of other sites send
(jobs/webserver.py; MLflow's own --allowed-hosts). All that the servers start ends with this process however that ends.
Runs that the daemon launched have sessions of their own and go on. What the servers say is in `.dagster/ui.log`; the
addresses are printed once both answer.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from assets.environment import environment
from assets.resources import deployment
from pipeline.core import layout
from pipeline.core.locations import sqlite_file
from pipeline.core.processes import Child, die_with_parent
from pipeline.registry.runs import PAGES, mlflow_client, open_experiment

HOST = "127.0.0.1"
PORTS = {"DAGSTER": int(environment().dagster_port or 3000), "MLFLOW": int(environment().mlflow_port or 5000)}
DAGSTER, MLFLOW = (f"http://{HOST}:{port}" for port in PORTS.values())
GRACE_S = 20.0
"""What a server gets to end by itself: Dagster's daemon says in it that it is no longer there to take runs."""
POLL_S = 0.1
LOG, TAIL = Path(".dagster/ui.log"), 20  # lines that are shown where a server ends
DEFAULTS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""For variables that are not set. Without the second, MLflow's pages report what is clicked."""
EXPERIMENT = "from jobs.ui import experiment; print(experiment(), end='')"
"""In a process of its own: MLflow imports polars, whose handler of SIGINT has a wait go on after Ctrl-C."""


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt ui", description=__doc__)
    options.add_argument("--with-parent", action="store_true", help="end when the process that started this one ends")
    return options


def main(arguments: Sequence[str] = ()) -> int:
    if parser().parse_args(arguments).with_parent:  # make, which a SIGKILL ends without a word to us
        die_with_parent(signal.SIGTERM)
    # A shell without job control starts us ignoring SIGINT, and so would the servers: handled here, it is theirs again.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup means it
            signal.signal(number, signal.default_int_handler)
    variables = {**DEFAULTS, **os.environ, "PYTHONUNBUFFERED": "1"}
    web = ["--host", HOST, "--port", str(PORTS["DAGSTER"])]
    servers: dict[str, Child] = {}
    LOG.parent.mkdir(exist_ok=True)
    print(f"Dagster and MLflow start; what they say is in {LOG}.", flush=True)
    try:
        with ExitStack() as stack:
            page, output = _runs_page(), stack.enter_context(LOG.open("wb"))
            for name, command in (
                ("MLflow", _mlflow()),
                ("Dagster's daemon", [sys.executable, "-m", "dagster._daemon", "run"]),
                ("Dagster's web server", [sys.executable, "-m", "jobs.webserver", *web]),
            ):
                child = Child(command, GRACE_S, watched=True, environment=variables, output=output)
                servers[name] = stack.enter_context(child)
            links = [f"Dagster  {DAGSTER}", f"MLflow   {MLFLOW}{page}", "Ctrl-C ends both."]
            while all(server.code is None for server in servers.values()):
                if links and all(map(_answers, PORTS.values())):
                    print(*links, sep="\n", flush=True)
                    links.clear()
                time.sleep(POLL_S)
            ended = [f"{name} ended with status {e.code}" for name, e in servers.items() if e.code is not None]
    except KeyboardInterrupt:
        return 0
    print("\n".join(LOG.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]))
    print(f"{' and '.join(ended)}, so everything was ended. The last lines above say why.")
    print("For another port: DAGSTER_PORT=3001 MLFLOW_PORT=5001 make ui")
    return 1


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def experiment() -> str:
    """The id of the model's experiment. MLflow's database and the experiment are made if they are not there."""
    settings = deployment()
    addresses, name = settings.mlflow(), settings.recipe().base_model.name
    return open_experiment(mlflow_client(addresses.tracking), addresses, settings.store(), name)


def _runs_page() -> str:
    """Where the runs are among MLflow's pages; "" where it is not known."""
    settings = deployment()
    settings.store().path(layout.MLFLOW).mkdir(parents=True, exist_ok=True)
    if not sqlite_file(settings.tracking_uri()):
        return ""
    made = subprocess.run([sys.executable, "-c", EXPERIMENT], check=False, stdout=subprocess.PIPE, encoding="utf-8")
    return f"/#/experiments/{made.stdout}{PAGES}" if made.stdout else ""


def _mlflow() -> list[str]:
    settings = deployment()
    command = [str(Path(sys.executable).parent / "mlflow"), "server", "--host", HOST, "--port", str(PORTS["MLFLOW"])]
    command += ["--allowed-hosts", f"{HOST}:*,localhost:*", "--workers", "1"]
    artifacts = settings.store().path(layout.MLFLOW_ARTIFACTS)
    return [*command, "--backend-store-uri", settings.tracking_uri(), "--artifacts-destination", str(artifacts)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
