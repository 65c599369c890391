"""MLflow's server killed before and after it does what it is asked: a clear error, and one run and one version."""

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest
from mlflow import MlflowClient

from tests.pipeline.registry.test_registered_model import artifacts, register
from tests.ports import held_port
from tests.variants import one_and_variants

pytestmark = pytest.mark.slow
RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
TO_DO = r"gives no answer \(\w+\)\. See to it that it runs, and launch the same again"
RUN, UPLOAD, VERSION = "/runs/create", "/adapter_model.safetensors", "/model-versions/create"


class Line:
    """An address before a server's, which is cut once at a request whose path ends so: before it is passed on, or after
    the server has done it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cut_at, self.after = "", False
        self.cuts: list[str] = []


@contextmanager
def line_to(port: int) -> Generator[tuple[str, Line]]:
    line = Line(port)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            is_cut = bool(line.cut_at) and self.command != "GET" and path.endswith(line.cut_at)
            answer = None if is_cut and not line.after else self.passed_on(body)
            if is_cut:
                line.cuts.append(line.cut_at)
                line.cut_at = ""
            if is_cut or answer is None:
                self.close_connection = True
                return
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def passed_on(self, body: bytes) -> httpx2.Response | None:
            """None where the server is dead."""
            url = f"http://127.0.0.1:{line.port}{self.path}"
            headers = {name: value for name, value in self.headers.items() if name != "Accept-Encoding"}
            try:
                return httpx2.request(self.command, url, content=body, headers=headers, trust_env=False, timeout=60)
            except httpx2.TransportError:
                return None

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", line
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def line(server: str) -> Iterator[tuple[str, Line]]:
    with line_to(int(server.rpartition(":")[2])) as made:
        yield made


@pytest.mark.parametrize("path", one_and_variants([RUN, VERSION]))
def test_request_whose_answer_is_lost_makes_one_thing(path: str, line: tuple[str, Line], tmp_path: Path) -> None:
    """MLflow's client asks again by itself, within the same call."""
    url, cut = line
    cut.cut_at, cut.after = path, True
    name = f"lost{path.replace('/', '-')}"
    recorded = register(str(tmp_path / "data"), url, name)
    assert cut.cuts == [path] and recorded.version is not None
    check_one(url, name, recorded.version.version)


def test_a_server_that_is_not_there_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RETRIES, "0")
    with held_port() as held:
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"MLflow at {url} {TO_DO}"):
            register(str(tmp_path / "data"), url, "nobody")


def check_one(url: str, name: str, number: int) -> None:
    client = MlflowClient(url, url)
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None and len(client.search_runs([experiment.experiment_id])) == 1
    assert [int(each.version) for each in client.search_model_versions(f"name='{name}'")] == [number] == [1]
    weights = [path for path in artifacts(client, name) if path.endswith(".safetensors")]  # of the one run
    assert weights == ["adapter/adapter_model.safetensors", "model/model/model.safetensors"]
