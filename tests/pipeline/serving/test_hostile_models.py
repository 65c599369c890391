"""Model folders and adapters that somebody has tampered with: refused, or harmless. Nothing of theirs runs."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.model_files import adapter_config, faults, header
from pipeline.demo import MODEL_DIR

LORA = {"peft_type": "LORA", "r": 8, "rank_pattern": {}, "base_model_name_or_path": "/etc"}


def weights(path: Path, head: bytes, length: int | None = None, data: bytes = b"") -> Path:
    path.write_bytes(struct.pack("<Q", len(head) if length is None else length) + head + data)
    return path


def tensor(offsets: Any) -> bytes:
    return json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}).encode()


@pytest.mark.parametrize(
    ("head", "length"),
    [
        (b"{}", 2**64 - 1),
        (b"[" * 200_000, None),
        (b"[]", None),
        (b"\x80\x04.", None),
        (tensor([0, -8]), None),
        (tensor([0, "4"]), None),
        (tensor([0, 1e300]), None),
        (tensor(None), None),
        (tensor([0, 2**62]), None),
        (b'{"a": 3}', None),
    ],
)
def test_a_hostile_header_is_refused(tmp_path: Path, head: bytes, length: int | None) -> None:
    with pytest.raises(ValueError, match=r"safetensors|expected"):
        header(weights(tmp_path / "model.safetensors", head, length))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"peft_type": "PROMPT_TUNING", "tokenizer_name_or_path": "evil/model"}, "LORA is read"),
        ({"megatron_config": {"a": 1}, "megatron_core": "antigravity"}, "imports the module"),
        ({"r": "8"}, "no numbers"),
        ({"r": 10**9}, "no numbers"),
        ({"rank_pattern": {"q": "8"}}, "no numbers"),
    ],
)
def test_a_hostile_adapter_is_refused(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({**LORA, **changes}))
    with pytest.raises(ValueError, match=complaint):
        adapter_config(tmp_path)


def test_an_index_leads_to_no_file_elsewhere(tmp_path: Path) -> None:
    folder = shutil.copytree(MODEL_DIR, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "../../etc/passwd"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "has no weight_map of names to files in its folder" in faults(folder)[0]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The embedded model's folder, with code of its own in it that leaves a file when it runs."""
    folder = shutil.copytree(MODEL_DIR, tmp_path / "model")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Evil: ...\n")
    return folder


@pytest.mark.slow
def test_code_beside_a_model_does_not_run(model: Path, tmp_path: Path) -> None:
    from pipeline.serving.loaded import LoadedModel

    mapping = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM", "AutoModel"), "evil.Evil")
    for name, entry in (("config.json", mapping), ("tokenizer_config.json", {"AutoTokenizer": ["evil.Evil", None]})):
        path = model / name
        path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": entry}))
    LoadedModel(str(model), 1)
    assert not (tmp_path / "ran").exists()
