"""A model's copy: verified as it comes, resumed where it was cut, whole or not there."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.storage import ModelRef, digest_dir
from pipeline.serving import model_places
from pipeline.serving.model_places import copy_model, export_model, partial_folder

BYTES = 5000


@pytest.fixture
def model(tmp_path: Path) -> ModelRef:
    folder = tmp_path / "model"
    (folder / "nested").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "nested" / "weights.safetensors").write_bytes(os.urandom(BYTES))
    (folder / "empty").touch()
    return ModelRef(uri=str(folder), digest=digest_dir(folder))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are fetched."""
    names: list[str] = []
    opened = model_places.opened

    def wrapped(uri: str) -> tuple[Any, str]:
        files, target = opened(uri)
        whole = files.get_file
        files.get_file = lambda place, path: [names.append(place.rpartition("/")[2]), whole(place, path)]
        return files, target

    monkeypatch.setattr(model_places, "opened", wrapped)
    return names


def left(model: ModelRef, target: Path, content: bytes) -> Path:
    """What an earlier try left of the weights."""
    file = partial_folder(target, model.digest) / "nested" / "weights.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    return file


def test_a_copy_is_the_model_and_is_made_once(model: ModelRef, tmp_path: Path, asked: list[str]) -> None:
    copy_model(model.uri, model.digest, tmp_path / "copy")
    assert digest_dir(tmp_path / "copy") == model.digest
    assert [path.name for path in tmp_path.iterdir() if ".partial-" in path.name] == []
    asked.clear()
    copy_model(model.uri, model.digest, tmp_path / "copy")
    assert asked == []


@pytest.mark.parametrize(
    ("found", "fetched"),
    [(lambda whole: whole, 0), (lambda whole: whole[: BYTES // 2], 1), (lambda whole: b"\0" * (2 * BYTES), 1)],
    ids=["whole", "cut", "too long"],
)
def test_what_an_earlier_try_left_is_kept_where_it_is_whole(
    model: ModelRef, tmp_path: Path, asked: list[str], found: Callable[[bytes], bytes], fetched: int
) -> None:
    left(model, tmp_path / "copy", found((Path(model.uri) / "nested" / "weights.safetensors").read_bytes()))
    (partial_folder(tmp_path / "copy", model.digest) / "stray").write_text("of another model")
    copy_model(model.uri, model.digest, tmp_path / "copy")
    assert digest_dir(tmp_path / "copy") == model.digest
    assert asked.count("weights.safetensors") == fetched


def test_other_weights_are_refused(model: ModelRef, tmp_path: Path) -> None:
    (Path(model.uri) / "config.json").write_text("{ }")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "of another model").write_text("half")
    with pytest.raises(ValueError, match="Name the digest"):
        copy_model(model.uri, model.digest, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["of another model"], "until there is a better one"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="There is nothing"):
        copy_model(str(tmp_path / "empty"), model.digest, tmp_path / "copy")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_come_from_a_bucket(model: ModelRef, bucket: str, tmp_path: Path) -> None:
    uri = export_model(model, f"s3://{bucket}", "champion", print).uri
    left(model, tmp_path / "copy", b"half")
    copy_model(uri, model.digest, tmp_path / "copy")
    assert digest_dir(tmp_path / "copy") == model.digest
