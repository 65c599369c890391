"""What MLflow servers answer: a real one behind what companies put in front of it, runs that somebody deleted, and
versions that load from the server alone."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.cli import cli
from mlflow.entities import ViewType

from pipeline.core.iteration import identify
from pipeline.core.storage import DatasetRef, ModelRef, Store, digest_dir
from pipeline.demo import MODEL_DIR
from pipeline.places.mlflow import try_out
from pipeline.registry.runs import MlflowAddresses
from pipeline.registry.versions import RecordedVersion
from tests.fork_server import ForkServer

from .conftest import put_on_record

pytestmark = pytest.mark.slow

LOGIN = "ada:sesame"
FILE_BYTES = 3 << 20


@contextmanager
def front(server: str, prefix: str = "", login: str = "", limit: int = 1 << 30, answers: Any = None) -> Generator[str]:
    """The address of a proxy before a server. `limit`: of a request's body, in bytes; `answers`: (status, type, text)
    for whatever is asked, or for `/version` alone if the type is text/plain."""

    class Front(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if answers is not None and (answers[1] != "text/plain" or self.path == "/version"):
                self.send(*answers)
            elif not self.path.startswith(f"{prefix}/"):
                self.send(404, "text/html", "<html>nothing here</html>")
            elif login and self.headers.get("Authorization") != f"Basic {b64encode(login.encode()).decode()}":
                self.send(401, "text/html", "<html>who is there?</html>")
            elif len(body) > limit:
                self.send(413, "text/html", "<html>too large</html>")
            else:
                headers = {"Content-Type": self.headers.get("Content-Type", "")}
                url = server + self.path.removeprefix(prefix)
                answer = requests.request(self.command, url, data=body, headers=headers, timeout=60)
                self.send(answer.status_code, answer.headers.get("Content-Type", ""), answer.text)

        def send(self, status: int, kind: str, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one

        def log_message(self, format: str, *args: Any) -> None: ...

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Front)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}{prefix}"
    finally:
        proxy.shutdown()
        proxy.server_close()


def keep(root: Path, address: str, name: str) -> RecordedVersion:
    """An iteration of `name` put on record; again, if it is there."""
    adapter, merged = root / "adapter", root / "merged"
    for folder, size in ((adapter, 1), (merged, FILE_BYTES)):
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").write_bytes(bytes(size))
    dataset = DatasetRef(uri="d", rows=1, digest="data", snapshot="s1")
    iteration = identify(0, name, ModelRef(uri="base", digest="base"), dataset, "recipe")
    one, other = (ModelRef(uri=str(folder), digest=digest_dir(folder)) for folder in (adapter, merged))
    return put_on_record(MlflowAddresses(address), Store(root), iteration, one, other)


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "login": ({"login": LOGIN}, "wants a login.* MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRA"),
    "json": ({"answers": (401, "application/json", '{"message": "no"}')}, "wants a login"),
    "path": ({"prefix": "/tools"}, "is no MLflow, at least not at that path"),
    "limit": ({"limit": 1 << 20}, r"has something in front that cuts requests.* client_max_body_size.* \(3\.1 MB: "),
    "page": ({"answers": (200, "text/html", "<html>Log in</html>")}, r"answers with a page.* \(.*Log in"),
    "old": ({"answers": (200, "text/plain", "2.3.1")}, r"is too old: upgrade it, from 2\.12 on it works \(version 2"),
}


@pytest.mark.situation("09-mlflow-answers-called-no-answer", "refused_before_paid")
@pytest.mark.parametrize("kind", REFUSALS)
def test_a_no_is_told_as_it_came(server: str, tmp_path: Path, kind: str) -> None:
    options, message = REFUSALS[kind]
    with front(server, **options) as address:
        address = address.removesuffix("/tools")
        (fault,) = try_out(MlflowAddresses(address), f"refused {kind}", FILE_BYTES)
        assert re.match(rf"MLflow at {address} {message}", fault)
        if kind != "old":
            with pytest.raises(ValueError, match=rf"^MLflow at {address} {message}"):
                keep(tmp_path, address, f"refused {kind}")


def test_no_answer_is_no_refusal(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with front(server, answers=(502, "text/html", "<html>Bad Gateway</html>")) as address:
        (fault,) = try_out(MlflowAddresses(address), "away", 0)
        assert re.match(rf"MLflow at {address} gives no answer: .* \(Bad Gateway\)", fault)
        with pytest.raises(ConnectionError, match="gives no answer"):
            keep(tmp_path, address, "away")
    (fault,) = try_out(MlflowAddresses("http://127.0.0.1:1"), "away", 0)
    assert re.match(r"MLflow at http://127.0.0.1:1 gives no answer: .*Connection refused", fault)


def test_tries_leave_one_deleted_run(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", LOGIN.partition(":")[0])
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", LOGIN.partition(":")[2])
    client = MlflowClient(server, server)
    models = {model.name for model in client.search_registered_models()}
    with front(server, "/tools/mlflow", LOGIN) as address:
        for slash in ("", "/"):
            assert try_out(MlflowAddresses(address + slash), "tried", FILE_BYTES) == []
        (experiment,) = client.search_experiments(filter_string="name = 'tried'")
        (run,) = client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL)
        assert run.info.lifecycle_stage == "deleted" and client.list_artifacts(run.info.run_id) == []
        assert {model.name for model in client.search_registered_models()} == models
        assert keep(tmp_path, address, "tried").version is not None


def test_a_database_is_only_read(tmp_path: Path) -> None:
    absent, there = (MlflowAddresses(f"sqlite:///{tmp_path}/{name}.db") for name in ("absent", "there"))
    assert try_out(absent, "local", FILE_BYTES) == [] and not list(tmp_path.iterdir())
    keep(tmp_path, there.tracking, "local")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert try_out(there, "local", FILE_BYTES) == []
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_deleted_experiment_is_restored_by_the_command(server: str, tmp_path: Path, monkeypatch: Any) -> None:
    client, addresses = MlflowClient(server, server), MlflowAddresses(server)
    client.delete_experiment(keep(tmp_path, server, "tidied up").run.experiment_id)
    (fault,) = try_out(addresses, "tidied up", 0)
    with pytest.raises(ValueError, match=re.escape(fault)):
        keep(tmp_path, server, "tidied up")
    named, command = fault.split(" Restore it: ")
    assert named == "MLflow's experiment 'tidied up' is deleted."
    variable, program, *words = shlex.split(command)
    assert (variable, program) == (f"MLFLOW_TRACKING_URI={server}", "mlflow")
    monkeypatch.setenv(*variable.split("="))
    cli.main(words, standalone_mode=False)
    assert try_out(addresses, "tidied up", 0) == []


def test_a_deleted_run_is_restored(server: str, tmp_path: Path) -> None:
    client, name = MlflowClient(server, server), "deleted run"
    first = keep(tmp_path, server, name)
    client.set_registered_model_alias(name, "champion", "1")
    client.delete_run(first.run.run_id)
    (fault,) = try_out(MlflowAddresses(server), name, 0)
    assert fault.endswith(f"MLFLOW_TRACKING_URI={server} mlflow runs restore --run-id {first.run.run_id}")
    assert keep(tmp_path, server, name) == first
    (run,) = client.search_runs([first.run.experiment_id])
    assert run.info.run_id == first.run.run_id and len(client.search_model_versions(f"name='{name}'")) == 1
    assert try_out(MlflowAddresses(server), name, 0) == []


@pytest.mark.situation("11-mlflow-gc-under-a-version", "right")
def test_files_that_gc_removed_are_put_there_again(server: str, server_folder: Path, tmp_path: Path) -> None:
    client, name = MlflowClient(server, server), "collected"
    first = keep(tmp_path, server, name)
    client.set_registered_model_alias(name, "champion", "1")
    client.delete_run(first.run.run_id)
    command = [sys.executable, "-m", "mlflow", "gc", "--tracking-uri", server, "--run-ids", first.run.run_id]
    subprocess.run([*command, "--backend-store-uri", f"sqlite:///{server_folder}/mlflow.db"], check=True)
    (fault,) = try_out(MlflowAddresses(server), name, 0)
    assert re.search(
        r"collected version 1 has lost its files.* -o model_version --tags '{\"iteration\": \"\w+\"}'", fault
    )
    second = keep(tmp_path, server, name)
    assert second.run != first.run and second.version is not None and second.version.version == 1
    source = client.get_model_version_download_uri(name, "1")
    folder = Path(download_artifacts(source, dst_path=str(tmp_path / "loaded"), tracking_uri=server))
    assert (folder / "MLmodel").is_file() and (folder / "model" / "model.safetensors").stat().st_size == FILE_BYTES
    assert try_out(MlflowAddresses(server), name, 0) == []


ELSEWHERE = """
import json, sys
import mlflow, torch
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from peft import PeftModel
from transformers import AutoModelForCausalLM

name = sys.argv[1]
question = [{"role": "user", "content": "What is 2 + 3?"}]
(answer,) = mlflow.pyfunc.load_model(f"models:/{name}@champion").predict({"messages": question})
pipeline = mlflow.transformers.load_model(f"models:/{name}@champion")
run = MlflowClient().get_model_version_by_alias(name, "champion").run_id
adapter = download_artifacts(run_id=run, artifact_path="adapter")
base = json.load(open(f"{adapter}/base.json"))["model"]
whole = AutoModelForCausalLM.from_pretrained(download_artifacts(base) + "/model")
rebuilt = PeftModel.from_pretrained(whole, adapter).merge_and_unload().state_dict()
merged = pipeline.model.state_dict()
print(json.dumps({
    "chat": answer["choices"][0]["message"],
    "pipeline": pipeline(question, max_new_tokens=8)[0]["generated_text"][-1]["role"],
    "base": base,
    "equal": rebuilt.keys() == merged.keys() and all(torch.equal(rebuilt[key], merged[key]) for key in merged),
    "project": "pipeline" in sys.modules,
}))
"""


def register(server: ForkServer, root: str, url: str, name: str, base: str = str(MODEL_DIR), number: str = "0"):
    """The version of the next iteration over `base`, whose training is under the data root."""
    champion = ModelRef(uri=base, digest=digest_dir(Path(base)))
    dataset = DatasetRef(uri="d", rows=7, digest=f"{number:0>64}", snapshot="s")
    iteration = identify(int(number), name, champion, dataset, "recipe")
    store = Store(root)
    folder = store.path(iteration.path("training"))
    tuned = server.popen([sys.executable, "-m", "tests.pipeline.registry.tuned", base, str(folder), number])
    assert tuned.wait() == 0, tuned.stdout.read()
    refs = [ModelRef(uri=str(folder / each), digest=digest_dir(folder / each)) for each in ("adapter", "model")]
    return put_on_record(MlflowAddresses(url), store, iteration, *refs)


def on_another_machine(url: str, folder: Path, script: str, *arguments: str) -> dict[str, object]:
    """What a script prints that knows a tracking server and MLflow, and nothing of the project or its data."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "HF_HOME")}
    environment |= {"MLFLOW_TRACKING_URI": url, "HOME": str(folder), "TMPDIR": str(folder), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_version_loads_and_is_rebuilt_from_the_server_alone(
    server: str, fork_server: ForkServer, tmp_path: Path
) -> None:
    root, other = tmp_path / "data", tmp_path / "other"
    other.mkdir()
    one = register(fork_server, str(root), server, "served").version
    assert one is not None
    two = register(fork_server, str(root), server, "served", one.model.uri, "1").version
    assert two is not None and two.version == 2
    client = MlflowClient(server, server)
    client.set_registered_model_alias("served", "champion", "2")
    bases = [client.get_model_version("served", number).tags["base"] for number in ("1", "2")]
    assert bases == ["model", "models:/served/1"]
    shutil.rmtree(root)
    answered = on_another_machine(server, other, ELSEWHERE, "served")
    assert answered["chat"]["role"] == "assistant" and answered["chat"]["content"]
    assert answered["pipeline"] == "assistant"
    assert (answered["base"], answered["equal"], answered["project"]) == ("models:/served/1", True, False)
    texts = [path for path in (other / "..").rglob("files/**/*") if path.suffix in (".json", ".yaml", "")]
    assert not [path for path in texts if path.is_file() and str(tmp_path) in path.read_text()]
