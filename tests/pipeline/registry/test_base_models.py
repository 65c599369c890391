"""Base models of a real registry and of the Hub, and versions that load from the server alone."""

import json
import os
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import RepositoryNotFoundError
from mlflow import MlflowClient

from pipeline import demo
from pipeline.core.iteration import identify
from pipeline.core.storage import DatasetRef, ModelRef, Store, digest_dir, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.recipe import BaseModelSection, ChatSettings
from pipeline.registry.base_models import fetch_base, pin_base, pinned_base
from pipeline.registry.runs import MlflowAddresses
from tests.fork_server import ForkServer

from .conftest import put_on_record

pytestmark = pytest.mark.slow


HUB = "hf://team/tiny"
NOWHERE = MlflowAddresses("http://127.0.0.1:9")


def base(uri: str, **chat: Any) -> BaseModelSection:
    return BaseModelSection(name="chat", uri=uri, chat=ChatSettings(**chat))


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
        pin = fetch_base(store, base("models:/chat@champion"), addresses, messages.append)
        assert (pin.exact, pin.digest) == (f"models:/chat/{version}", model_ref(folder).digest)
        assert Path(pin.folder).is_relative_to(store.root)
        assert fetch_base(store, base("models:/chat@champion"), addresses, messages.append) == pin
    assert fetch_base(store, base("models:/chat@champion"), NOWHERE, messages.append) == pin
    assert "models:/chat/2 stands" in messages[-1]
    with pytest.raises(ValueError, match=r"MLflow at sqlite:.* refuses \(.*chat, version=9\) not found"):
        fetch_base(store, base("models:/chat/9"), addresses, print)
    with pytest.raises(ValueError, match="Write models:/NAME@alias"):
        fetch_base(store, base("models:/chat"), addresses, print)


def test_a_repository_is_pinned_to_its_commit(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served, commit, uri = tmp_path / "served", "a" * 40, f"{HUB}@main"
    shutil.copytree(demo.MODEL_DIR, served)
    (served / "modeling_tiny.py").write_text("raise SystemExit")

    def model_info(api: object, id: str, revision: str | None, timeout: float) -> SimpleNamespace:
        if (id, revision) != ("team/tiny", "main"):
            request = httpx.Request("GET", "https://hub/api/models")
            raise RepositoryNotFoundError("absent", response=httpx.Response(404, request=request))
        return SimpleNamespace(sha=commit)

    def snapshot_download(id: str, revision: str, local_dir: Path, allow_patterns: list[str]) -> None:
        assert (id, revision) == ("team/tiny", commit)
        shutil.copytree(served, local_dir, dirs_exist_ok=True)
        for path in local_dir.iterdir():
            if not any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                path.unlink()

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    pin = fetch_base(store, base(uri), NOWHERE, print)
    assert pinned_base(store, base(uri)) == pin and pin.exact == f"{HUB}@{commit}"
    assert pin.digest == model_ref(demo.MODEL_DIR).digest, "and no code"
    for wrong, said in (("hf://team/absent", "the Hub has no hf://team/absent"), ("hf://tiny", "Write hf://ORG/NAME")):
        with pytest.raises(ValueError, match=said):
            fetch_base(store, base(wrong), NOWHERE, print)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    messages: list[str] = []
    assert fetch_base(store, base(uri), NOWHERE, messages.append) == pin
    assert messages == [f"base model: {uri} is not answered for, and {pin.exact} stands. HF_HUB_OFFLINE is set"]
    with pytest.raises(ValueError, match=r"cannot be fetched .*HF_HUB_OFFLINE is set"):
        fetch_base(store, base(HUB), NOWHERE, print)


def test_chat_settings_make_a_copy_of_the_base(store: Store, tmp_path: Path) -> None:
    """One copy for the settings and the template's text; the base stays as it is."""
    template, before = tmp_path / "own.jinja", model_ref(demo.MODEL_DIR).digest
    template.write_text("{{ messages[0].content }}")
    uri = str(demo.MODEL_DIR)
    pin = pin_base(store, base(uri, template=str(template)), NOWHERE, print)
    assert pin_base(store, base(uri, template=str(template)), NOWHERE, print) == pin
    assert (Path(pin.folder) / "chat_template.jinja").read_text() == "{{ messages[0].content }}"
    template.write_text("{{ messages[-1].content }}")
    assert pin_base(store, base(uri, template=str(template)), NOWHERE, print).digest != pin.digest
    assert model_ref(demo.MODEL_DIR).digest == before
    with pytest.raises(ValueError, match=r"chat\.template: .*none\.jinja cannot be read .* Name a Jinja file"):
        pin_base(store, base(uri, template="none.jinja"), NOWHERE, print)


ROOT = Path(__file__).parents[3]

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
