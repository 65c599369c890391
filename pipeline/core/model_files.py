"""Checks of a Hugging Face model directory: config, tokenizer and whole weights, by headers and sizes. Weights are
safetensors: a pickle can run code when it is opened."""

import json
import struct
from pathlib import Path
from typing import Any

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
HEADER_MAX = 100 << 20
"""Bytes of a safetensors header, by the format's own limit."""
MAX_RANK = 1 << 16
SHOWN = 3
"""Files that an error names; of more, the number."""


def faults(folder: Path) -> list[str]:
    """Why the directory is no complete model: one sentence each, with what to do."""
    if not folder.is_dir():
        return [f"No model directory at {folder}. Set base_model.uri to one with config.json, weights and tokenizer."]
    found: list[str] = []
    if not (folder / "config.json").is_file():
        found.append(f"{folder} has no config.json. Save the model and its tokenizer into the same directory.")
    else:
        try:
            _object(folder / "config.json")
        except ValueError as error:
            found.append(f"{folder / 'config.json'} cannot be read: {error}. Save the model again.")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        found.append(f"{folder} has no tokenizer ({' or '.join(TOKENIZERS)}). Save it into the model's directory.")
    return [*found, *_weights(folder)]


def weight_files(folder: Path) -> list[Path]:
    """The files of the weights, in name order. Raises ValueError when the index of the shards cannot be read."""
    if (folder / ONE_FILE).is_file() or not (folder / INDEX).is_file():
        return [folder / ONE_FILE]
    shards = _object(folder / INDEX).get("weight_map")
    names = set(map(str, shards.values())) if isinstance(shards, dict) else set[str]()
    if not names or any(Path(name).name != name for name in names):
        raise ValueError("it has no weight_map of names to files beside it")
    return [folder / name for name in sorted(names)]


def header(path: Path) -> dict[str, dict[str, Any]]:
    """Name to dtype, shape and place of every tensor. Raises ValueError for a file that is no whole safetensors."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(8)
        (length,) = struct.unpack("<Q", start) if len(start) == 8 else (size,)
        if length > min(size - 8, HEADER_MAX):
            raise ValueError(f"{size:,} bytes that are no safetensors")
        try:
            tensors: dict[str, Any] = json.loads(stream.read(length))
            tensors.pop("__metadata__", None)
            places = [tensor["data_offsets"] for tensor in tensors.values()]
            if not all(type(at) is int and at >= 0 for place in places for at in place):
                raise ValueError("a place that is no number of bytes")
            end = max((last for _, last in places), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise ValueError(f"{size:,} bytes that are no safetensors") from error
    if size != 8 + length + end:
        raise ValueError(f"{size:,} bytes, {8 + length + end:,} expected")
    return tensors


def adapter_config(folder: Path) -> dict[str, Any]:
    """Raises ValueError for an adapter that is not LoRA, has invalid ranks, or would make PEFT import a module."""
    path = folder / ADAPTER
    try:
        config = _object(path)
    except ValueError as error:
        raise ValueError(
            f"{path} cannot be read ({error}). Point to a folder that PEFT saved an adapter in."
        ) from error
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{path} is of the type {str(config.get('peft_type'))[:40]!r}, and LORA is read. Train it so.")
    if config.get("megatron_config"):
        raise ValueError(f"{path} has a megatron_config, and PEFT imports the module that it names for it. Remove it.")
    pattern = config.get("rank_pattern") or {}
    ranks = [config.get("r"), *(pattern.values() if isinstance(pattern, dict) else [pattern])]
    if not all(type(rank) is int and 0 < rank <= MAX_RANK for rank in ranks):
        raise ValueError(f"{path} has ranks that are no numbers from 1 to {MAX_RANK}. Save the adapter again.")
    return config


def _weights(folder: Path) -> list[str]:
    try:
        files = weight_files(folder)
    except ValueError as error:
        return [f"{folder / INDEX} cannot be read: {error}. Copy the file anew."]
    if missing := [path.name for path in files if not path.is_file()]:
        return [_missing(folder, missing, len(files))]
    broken: list[str] = []
    for path in files:
        try:
            header(path)
        except ValueError as error:
            broken.append(f"{path.name} ({error})")
    if broken:
        more = f" and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
        return [f"{folder} has weights that are not whole: {', '.join(broken[:SHOWN])}{more}. Copy them anew."]
    return []


def _missing(folder: Path, missing: list[str], files: int) -> str:
    if missing != [ONE_FILE]:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        names = ", ".join(missing[:SHOWN]) + more
        return f"{folder} lacks {len(missing)} of the {files} weight files of its index: {names}. Copy them there."
    if (folder / ADAPTER).is_file():
        return (
            f"{folder} holds an adapter, not a whole model. Merge it into its base (peft: merge_and_unload), and save."
        )
    if pickles := sorted(path.name for path in folder.glob("*.bin")):
        return (
            f"{folder} has its weights as pickles alone ({pickles[0]}), which are not opened: they can run code. "
            "Save the model as safetensors (save_pretrained)."
        )
    return f"{folder} has no weights ({ONE_FILE}, or {INDEX} with its files). Save them beside config.json."


def _object(path: Path) -> dict[str, Any]:
    """Raises ValueError when the file is no JSON object."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(tree, dict):
        raise ValueError(f"it holds {type(tree).__name__}, not an object")
    return tree
