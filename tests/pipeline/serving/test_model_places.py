"""A model's copy: verified as it comes, resumed where it was cut, whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.storage import ModelRef, digest_dir
from pipeline.rollout.export import export_model
from pipeline.serving import model_places
from pipeline.serving.model_places import copy_model, partial_folder

CHUNK = 1 << 12


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelRef:
    """Of two files, one of five chunks and a bit."""
    monkeypatch.setattr(model_places, "CHUNK", CHUNK)
    folder = tmp_path / "model"
    (folder / "nested").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "nested" / "weights.safetensors").write_bytes(os.urandom(5 * CHUNK + 7))
    (folder / "empty").touch()
    return ModelRef(uri=str(folder), digest=digest_dir(folder))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Name and first byte of every range that is read."""
    ranges: list[tuple[str, int]] = []
    opened = model_places.opened

    def wrapped(uri: str) -> tuple[Any, str]:
        files, target = opened(uri)
        whole: Callable[..., bytes] = files.cat_file

        def cat_file(place: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
            if start is not None:
                ranges.append((place.rpartition("/")[2], start))
            return whole(place, start=start, end=end, **more)

        files.cat_file = cat_file
        return files, target

    monkeypatch.setattr(model_places, "opened", wrapped)
    return ranges


def left(model: ModelRef, target: Path, content: bytes) -> Path:
    """What an earlier try left of the weights."""
    file = partial_folder(target, model.digest) / "nested" / "weights.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    return file


def test_a_copy_is_the_model_and_is_made_once(model: ModelRef, tmp_path: Path, asked: list[tuple[str, int]]) -> None:
    copy_model(model.uri, model.digest, tmp_path / "copy")
    assert digest_dir(tmp_path / "copy") == model.digest
    assert [path.name for path in tmp_path.iterdir() if ".partial-" in path.name] == []
    asked.clear()
    copy_model(model.uri, model.digest, tmp_path / "copy")
    assert asked == []


def test_a_copy_goes_on_where_it_was_cut(model: ModelRef, tmp_path: Path, asked: list[tuple[str, int]]) -> None:
    whole = (Path(model.uri) / "nested" / "weights.safetensors").read_bytes()
    left(model, tmp_path / "copy", whole[: 3 * CHUNK + 1])
    copy_model(model.uri, model.digest, tmp_path / "copy")
    assert digest_dir(tmp_path / "copy") == model.digest
    assert min(start for name, start in asked if name == "weights.safetensors") == 3 * CHUNK + 1


@pytest.mark.parametrize("exported", [True, False], ids=["with its manifest", "without"])
@pytest.mark.parametrize("torn", [b"\0" * (2 * CHUNK), b"\0" * (9 * CHUNK)], ids=["torn", "too long"])
def test_parts_of_other_bytes_are_copied_anew(model: ModelRef, tmp_path: Path, exported: bool, torn: bytes) -> None:
    uri = export_model(model, str(tmp_path / "root"), "m", print).uri if exported else model.uri
    left(model, tmp_path / "copy", torn)
    (partial_folder(tmp_path / "copy", model.digest) / "stray").write_text("of nobody")
    copy_model(uri, model.digest, tmp_path / "copy")
    assert digest_dir(tmp_path / "copy") == model.digest


def test_an_exported_file_that_rotted_is_told_at_once(
    model: ModelRef, tmp_path: Path, asked: list[tuple[str, int]]
) -> None:
    uri = export_model(model, str(tmp_path / "root"), "m", print).uri
    (Path(uri) / "nested" / "weights.safetensors").write_bytes(b"\0" * (5 * CHUNK + 7))
    with pytest.raises(ValueError, match="Name the digest"):
        copy_model(uri, model.digest, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert sum(name == "weights.safetensors" for name, _ in asked) == 2 * 6, "tried once more, for the wire's sake"


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


@pytest.mark.filterwarnings("ignore")
def test_weights_come_from_a_bucket(model: ModelRef, bucket: str, tmp_path: Path) -> None:
    uri = export_model(model, f"s3://{bucket}", "champion", print).uri
    whole = (Path(model.uri) / "nested" / "weights.safetensors").read_bytes()
    left(model, tmp_path / "copy", whole[:CHUNK])
    copy_model(uri, model.digest, tmp_path / "copy")
    assert digest_dir(tmp_path / "copy") == model.digest
