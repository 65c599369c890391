"""Exports of the embedded model to a mounted folder and to S3, and what becomes of one that was cut off."""

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.storage import ModelRef, digest_dir, model_ref
from pipeline.serving.model_places import copy_model, export_model, exported, exported_uri
from tests.servers import s3

pytestmark = pytest.mark.slow

BASE = Path(__file__).parents[3] / "pipeline" / "demo" / "model"


@pytest.fixture(params=["folder", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "volume")
        return
    import s3fs

    with s3() as endpoint:
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in {**keys, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        bucket = f"models-{uuid.uuid4().hex[:8]}"
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir(bucket)
        yield f"s3://{bucket}/tuned"


@pytest.fixture
def model(tmp_path: Path) -> ModelRef:
    folder = Path(shutil.copytree(BASE, tmp_path / "model"))
    (folder / "extra").mkdir()
    (folder / "extra" / "notes.txt").write_text("in a folder of its own")
    return model_ref(folder)


def place(uri: str) -> str:
    return uri.removeprefix("s3://")


def files(uri: str) -> Any:
    import fsspec

    return fsspec.url_to_fs(uri, use_listings_cache=False, skip_instance_cache=True)[0]


def test_a_slot_loads_what_was_exported(root: str, model: ModelRef, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"Model {model.digest[:12]} is not exported"):
        exported(model.digest, root, "model")
    result = export_model(model, root, "model")
    assert result == ModelRef(uri=f"{root}/model/{model.digest}", digest=model.digest)
    assert exported(model.digest, root, "model") == result.uri
    copy_model(result.uri, result.digest, tmp_path / "slot")
    assert digest_dir(tmp_path / "slot") == model.digest


def test_an_export_that_was_cut_off_goes_on(root: str, model: ModelRef) -> None:
    uri = exported_uri(root, "model", model.digest)
    fs = files(uri)
    fs.makedirs(place(uri), exist_ok=True)
    whole = (Path(model.uri) / "tokenizer.json").read_bytes()
    weights = (Path(model.uri) / "model.safetensors").read_bytes()
    fs.pipe_file(f"{place(uri)}/tokenizer.json", whole)
    fs.pipe_file(f"{place(uri)}/model.safetensors", weights[: len(weights) // 2])
    fs.pipe_file(f"{place(uri)}/config.json", b" " * (Path(model.uri) / "config.json").stat().st_size)
    with pytest.raises(ValueError, match="is not exported"):
        exported(model.digest, root, "model")
    lines: list[str] = []
    export_model(model, root, "model", lines.append)
    assert [line for line in lines if "already" in line] == [f"tokenizer.json is at {uri} already"]
    assert any(line.startswith("config.json brought") for line in lines), "of the same size, and another file"
    assert exported(model.digest, root, "model") == uri


def test_files_that_changed_are_not_exported(root: str, model: ModelRef) -> None:
    (Path(model.uri) / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="changed since they were judged"):
        export_model(model, root, "model")
    with pytest.raises(ValueError, match="is not exported"):
        exported(model.digest, root, "model")
