"""Base models of a real registry and of the Hub."""

import shutil
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
from pipeline.core.storage import Store, model_ref
from pipeline.recipe import BaseModelSection, ChatSettings
from pipeline.registry.base_models import fetch_base, pin_base, pinned_base
from pipeline.registry.runs import MlflowAddresses

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
