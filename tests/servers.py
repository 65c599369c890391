"""Real servers on 127.0.0.1 for the tests: PostgreSQL and Prometheus from the system's packages, S3 from moto, vLLM."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from .ports import held_port

OWNER = "postgres"
PATIENT = ("-w", "-t", "300")
"""Options of pg_ctl: wait for the server, for five minutes."""
SILENCE_S = 2.0
STARTS_WITHIN_S = 240
VLLM_ON_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
VLLM_PYTHON = Path(__file__).parent.parent / ".venv-vllm" / "bin" / "python"


@contextmanager
def postgres(folder: Path) -> Generator[str]:
    """The URL of an empty database on a server of its own, whose files are in `folder`.

    PostgreSQL refuses to run as root: root hands `folder` to the user postgres, who must be able to reach it.
    """
    if os.geteuid() == 0:
        shutil.chown(folder, OWNER, OWNER)
    data = str(folder / "data")
    _pg("initdb", "-D", data, "-U", OWNER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
    with held_port() as held:
        port = held.getsockname()[1]
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        options += " -c fsync=off -c timezone=Asia/Seoul"
        _pg("pg_ctl", "start", *PATIENT, "-D", data, "-l", str(folder / "log"), "-o", options)
        try:
            yield f"postgresql://{OWNER}@127.0.0.1:{port}/postgres"
        finally:
            _pg("pg_ctl", "stop", *PATIENT, "-D", data, "-m", "immediate")


def _pg(program: str, *arguments: str) -> None:
    result = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}")) or [shutil.which(program)]
    if result[-1] is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    command = [str(result[-1]), *arguments]
    if os.geteuid() == 0:
        runuser = shutil.which("runuser", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        if runuser is None:
            pytest.skip(
                "PostgreSQL refuses root, and there is no runuser to be somebody else (apt-get install util-linux)"
            )
        command = [runuser, "-u", OWNER, "--", *command]
    # A file, not a pipe: the server inherits it and would keep a pipe open.
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}"


@contextmanager
def mlflow_server(folder: Path, port: int) -> Generator[subprocess.Popen[bytes]]:
    """MLflow's tracking server, with registry and artifacts, on a port that `held_port` holds; what it keeps stays in
    `folder` for the next one."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", f"{folder}/files"]
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=folder)
    try:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not _is_ready(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.1)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def s3() -> Generator[str]:
    """The endpoint of an S3 server. What it holds is one for the whole process: give each test a bucket of its own."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextmanager
def unsteady(endpoint: str, faults: Iterator[str]) -> Generator[str]:
    """An endpoint before another that takes one of `faults` at each GET until they run out.

    "500": an internal error; "slow": silence for SILENCE_S; "cut": half of the body; "": nothing.
    """

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            fault = next(faults, "") if self.command == "GET" else ""
            if fault == "slow":
                time.sleep(SILENCE_S)
            asked = urllib.request.Request(endpoint + self.path, headers=dict(self.headers), method=self.command)
            try:
                answer = urllib.request.urlopen(asked)
            except urllib.error.HTTPError as error:
                answer = error
            status, body, headers = answer.status, answer.read(), dict(answer.headers)
            if fault == "500":  # an error has none of the object's headers: not its checksum either
                status, body = 500, b"<Error><Code>InternalError</Code></Error>"
                headers = {"Content-Type": "application/xml"}
            self.send_response(status)
            for key, value in headers.items():
                if key.lower() not in ("content-length", "connection", "transfer-encoding", "date", "server"):
                    self.send_header(key, value)
            length = answer.headers["Content-Length"] if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)
            self.close_connection = fault == "cut"

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def prometheus(folder: Path, samples: str = "", config: str = "") -> Generator[str]:
    """The root of a Prometheus server whose database begins with `samples` (OpenMetrics with times); its files and its
    log are in `folder`. `config`: YAML."""
    program, tool = shutil.which("prometheus"), shutil.which("promtool")
    if program is None or tool is None:
        pytest.skip("Prometheus is not installed (apt-get install prometheus)")
    data, settings, filled = folder / "data", folder / "prometheus.yml", folder / "samples.txt"
    settings.write_text(config or "{}\n")
    if samples:
        filled.write_text(samples + "# EOF\n")
        subprocess.run(
            [tool, "tsdb", "create-blocks-from", "openmetrics", filled, data], check=True, capture_output=True
        )
    with held_port() as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        options = [f"--config.file={settings}", f"--storage.tsdb.path={data}", f"--web.listen-address={address}"]
        command = [program, *options, "--storage.tsdb.retention.time=100y", "--log.level=warn"]
        with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
            try:
                deadline = time.monotonic() + STARTS_WITHIN_S
                while not _is_ready(f"http://{address}/-/ready"):
                    assert server.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()[-3000:]
                    time.sleep(0.1)
                yield f"http://{address}"
            finally:
                server.kill()


def vllm_python() -> Path:
    """Skips the test where neither VLLM_PYTHON nor `make test-vllm` names an environment that has vLLM."""
    python = Path(os.environ.get("VLLM_PYTHON", VLLM_PYTHON))
    if not python.exists():
        pytest.skip(f"no vLLM at {python} (make test-vllm, or set VLLM_PYTHON to the Python of an environment with it)")
    return python


def _is_ready(url: str) -> bool:
    try:
        return httpx2.get(url, trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False


class HttpAsked(NamedTuple):
    """A request: `path` with its query, `headers` by name in any case."""

    path: str
    headers: Any
    body: bytes


@contextmanager
def answering(respond: Callable[[HttpAsked], tuple[int, bytes]]) -> Generator[str]:
    """A server of nothing but HTTP, which gives status and body for each request; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = respond(HttpAsked(self.path, self.headers, body))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else content)

        do_POST = do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
