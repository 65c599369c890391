"""Base models that lie elsewhere: of a real registry, and of a server that answers as the Hub's API does."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest
from mlflow import MlflowClient

from pipeline import demo
from pipeline.core.storage import Store, model_ref
from pipeline.registry.base_models import fetch_base, pinned_base
from pipeline.registry.runs import MlflowAddresses
from tests.loop import ROOT

pytestmark = pytest.mark.slow

HUB = "hf://team/tiny"
NOWHERE = MlflowAddresses("http://127.0.0.1:9")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


def test_an_alias_is_the_version_that_it_names_now(store: Store, tmp_path: Path) -> None:
    """Where the registry is away, or the alias has not moved, the files of before stand."""
    uri, messages = f"sqlite:///{tmp_path / 'mlflow.db'}", list[str]()
    client, addresses = MlflowClient(uri, uri), MlflowAddresses(uri)
    client.create_registered_model("chat")
    other = tmp_path / "other"
    shutil.copytree(demo.MODEL_DIR, other)
    (other / "note.txt").write_text("another one")
    for version, folder in (("1", demo.MODEL_DIR), ("2", other)):
        client.create_model_version("chat", source=str(folder))
        client.set_registered_model_alias("chat", "champion", version)
        pin = fetch_base(store, "models:/chat@champion", addresses, messages.append)
        assert (pin.exact, pin.digest) == (f"models:/chat/{version}", model_ref(folder).digest)
        assert Path(pin.folder).is_relative_to(store.root)
        assert fetch_base(store, "models:/chat@champion", addresses, messages.append) == pin
    assert fetch_base(store, "models:/chat@champion", NOWHERE, messages.append) == pin
    assert "models:/chat/2 stands" in messages[-1]
    with pytest.raises(ValueError, match="the registry has no models:/chat/9"):
        fetch_base(store, "models:/chat/9", addresses, print)
    with pytest.raises(ValueError, match="Write models:/NAME@alias"):
        fetch_base(store, "models:/chat", addresses, print)


@contextmanager
def hub(folder: Path, commit: str) -> Iterator[str]:
    """Answers for one repository, at one commit."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            files = sorted(path.name for path in folder.iterdir())
            if parts[:2] == ["api", "models"]:
                listed = [{"rfilename": name} for name in files]
                if "tree" in parts:
                    sizes = {name: (folder / name).stat().st_size for name in files}
                    listed = [{"type": "file", "path": name, "size": sizes[name], "oid": name} for name in files]
                    return self._send(json.dumps(listed).encode(), {}, True)
                known = parts[2:4] == ["team", "tiny"] and (len(parts) < 6 or parts[5] in ("main", commit))
                self._send(json.dumps({"id": "team/tiny", "sha": commit, "siblings": listed}).encode(), {}, known)
            else:
                name = parts[-1]
                content = (folder / name).read_bytes() if name in files else b""
                self._send(content, {"ETag": f'"{len(content)}-{name}"', "X-Repo-Commit": commit}, name in files)

        do_HEAD = do_GET

        def _send(self, content: bytes, headers: dict[str, str], known: bool) -> None:
            self.send_response(200 if known else 404)
            for name, value in headers.items() if known else [("X-Error-Code", "RepoNotFound")]:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content) if known else 0))
            self.end_headers()
            if known and self.command == "GET":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


FETCHES = """
import sys
from pipeline.registry.base_models import fetch_base
from pipeline.registry.runs import MlflowAddresses
from pipeline.core.storage import Store
for uri in sys.argv[2:]:
    try:
        print(fetch_base(Store(sys.argv[1]), uri, MlflowAddresses(""), print).model_dump_json())
    except ValueError as error:
        print(str(error).replace(chr(10), " "))
"""


def fetched(store: Store, url: str, *uris: str) -> list[str]:
    """Lines of a process that knows this Hub: its library reads the environment when it is imported."""
    variables = {**os.environ, "HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FETCHES, str(store.root), *uris]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_repository_is_pinned_to_its_commit(store: Store, tmp_path: Path) -> None:
    served, exact, uri = tmp_path / "served", f"{HUB}@{'a' * 40}", f"{HUB}@main"
    shutil.copytree(demo.MODEL_DIR, served)
    (served / "modeling_tiny.py").write_text("raise SystemExit")
    with hub(served, "a" * 40) as url:
        *_, absent, mistyped = fetched(store, url, uri, "hf://team/absent", "hf://tiny")
    pin = pinned_base(store, uri)
    assert pin is not None and (pin.exact, pin.digest) == (exact, model_ref(demo.MODEL_DIR).digest), "and no code"
    assert "the Hub has no hf://team/absent" in absent and "Write hf://ORG/NAME@revision" in mistyped
    messages: list[str] = []
    assert fetch_base(store, uri, NOWHERE, messages.append) == pin
    assert messages == [f"base model: {uri} is not answered for (ConnectionError); {exact} stands"], "offline"
    with pytest.raises(ValueError, match=r"cannot be fetched .*HF_HUB_OFFLINE is set"):
        fetch_base(store, HUB, NOWHERE, print)
