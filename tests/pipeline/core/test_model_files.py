"""A model directory is complete, or says what it lacks: real folders, each with one thing wrong."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from pipeline.core.model_files import INDEX, ONE_FILE, faults, header
from pipeline.core.storage import digest_dir, model_ref
from pipeline.demo import MODEL_DIR


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL_DIR, tmp_path / "model"))


def shard(folder: Path) -> None:
    """Split the one file in two, as save_pretrained does."""
    tensors = load_file(folder / ONE_FILE)
    names = sorted(tensors)
    halves = {"a-00001-of-00002.safetensors": names[::2], "a-00002-of-00002.safetensors": names[1::2]}
    for file, half in halves.items():
        save_file({name: tensors[name] for name in half}, folder / file)
    weight_map = {name: file for file, half in halves.items() for name in half}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / ONE_FILE).unlink()


def lose(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def put(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def cut(folder: Path) -> None:
    os.truncate(folder / ONE_FILE, 1_000_000)


def without_a_shard(folder: Path) -> None:
    shard(folder)
    (folder / "a-00002-of-00002.safetensors").unlink()


def with_an_empty_shard(folder: Path) -> None:
    shard(folder)
    (folder / "a-00001-of-00002.safetensors").write_bytes(b"")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (shutil.rmtree, r"No model directory at /.*model\. Name one with config\.json, weights"),
        (lose("config.json"), r"config\.json cannot be read: .*Save the model and its tokenizer"),
        (put("config.json", b'{"a": '), r"config\.json cannot be read: .*Save the model"),
        (put("config.json", b"[]"), r"config\.json holds list, not an object"),
        (lose("tokenizer.json"), r"has no tokenizer \(tokenizer\.json or tokenizer\.model or vocab\.json\)"),
        (lose(ONE_FILE), r"has no weights \(model\.safetensors, or model\.safetensors\.index\.json with its files\)"),
        (put(ONE_FILE, b"version https://git-lfs.github.com/spec/v1\n"), r"model\.safetensors \(no safetensors: "),
        (put(ONE_FILE, struct.pack("<Q", 2) + b"[]"), r"model\.safetensors \(no safetensors: "),
        (cut, r"weights that are not whole: model\.safetensors \(.*\)\. Copy them again"),
        (without_a_shard, r"not whole: a-00002-of-00002\.safetensors \(no safetensors: No such file"),
        (with_an_empty_shard, r"not whole: a-00001-of-00002\.safetensors \(no safetensors"),
        (lambda f: shard(f) or put(INDEX, b"{}")(f), r"index\.json has no weight_map"),
        (lambda f: shard(f) or put(INDEX, b'{"weight_map": {"a": "../x"}}')(f), r"in its folder\. Copy the file"),
    ],
)
def test_a_model_directory_must_be_whole(folder: Path, change: Callable[[Path], None], complaint: str) -> None:
    change(folder)
    with pytest.raises(ValueError, match=complaint):
        model_ref(folder)


def test_all_that_is_missing_is_named_at_once(folder: Path) -> None:
    lose("config.json", "tokenizer.json", ONE_FILE)(folder)
    assert len(faults(folder)) == 3


@pytest.mark.slow
def test_the_header_of_any_precision_is_read(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file as save_tensors

    save_tensors({"w": torch.zeros(2, 3, dtype=torch.bfloat16)}, tmp_path / ONE_FILE)
    assert header(tmp_path / ONE_FILE) == {"w": ("BF16", [2, 3])}


def test_hidden_files_are_no_part_of_a_model(folder: Path) -> None:
    """What a file manager or a download leaves: a plan that was made before still fits its base."""
    before = digest_dir(folder)
    (folder / ".DS_Store").write_text("x")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").write_text("x")
    assert digest_dir(folder) == before
    (folder / "note.txt").write_text("x")
    assert digest_dir(folder) != before
