"""Checks of a Hugging Face model directory: config, tokenizer and whole weights, by headers and sizes. Weights are
safetensors: a pickle can run code when it is opened."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")
"""Names of the context length, by the time of the configuration."""
MAX_RANK = 1 << 16
SHOWN = 3
"""Files that an error names; of more, the number."""


def faults(folder: Path) -> list[str]:
    """Why the directory is no complete model: one sentence each, with what to do."""
    if not folder.is_dir():
        return [f"No model directory at {folder}. Name one with config.json, weights and tokenizer."]
    found: list[str] = []
    try:
        _object(folder / "config.json")
    except ValueError as error:
        found.append(f"{error}. Save the model and its tokenizer into the same directory.")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        found.append(f"{folder} has no tokenizer ({' or '.join(TOKENIZERS)}). Save it into the model's directory.")
    try:
        files = weight_files(folder)
    except ValueError as error:
        return [*found, f"{error}. Copy the file again."]
    if files == [folder / ONE_FILE] and not files[0].is_file():
        return [
            *found,
            f"{folder} has no weights ({ONE_FILE}, or {INDEX} with its files). Save the model as safetensors "
            "(save_pretrained): pickles are not opened, for they can run code. Merge an adapter into its base "
            "(peft: merge_and_unload) before.",
        ]
    broken: list[str] = []
    for path in files:
        try:
            header(path)
        except ValueError as error:
            broken.append(f"{path.name} ({error})")
    if broken:
        more = f" and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
        found.append(f"{folder} has weights that are not whole: {', '.join(broken[:SHOWN])}{more}. Copy them again.")
    return found


def model_files(folder: Path) -> list[str]:
    """The files of a directory that are not hidden by their relative names, in the order of their paths."""
    names = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [str(name) for name in names if not is_hidden(name)]


def is_hidden(name: Path) -> bool:
    """Hidden files and folders, such as .DS_Store and .cache/, are no part of a model."""
    return any(part.startswith(".") for part in name.parts)


def weight_files(folder: Path) -> list[Path]:
    """The files of the weights, in name order. Raises ValueError when the index of the shards cannot be read."""
    if (folder / ONE_FILE).is_file() or not (folder / INDEX).is_file():
        return [folder / ONE_FILE]
    shards = _object(folder / INDEX).get("weight_map")
    names = set(map(str, shards.values())) if isinstance(shards, dict) else set[str]()
    if not names or any(Path(name).name != name for name in names):
        raise ValueError(f"{folder / INDEX} has no weight_map of names to files in its folder")
    return [folder / name for name in sorted(names)]


def header(path: Path) -> dict[str, tuple[str, list[int]]]:
    """Name to dtype and shape of every tensor. Raises ValueError for a file that is no whole safetensors."""
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            return {name: (each.get_dtype(), each.get_shape()) for name, each in slices.items()}
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"no safetensors: {error}") from error


def adapter_config(folder: Path) -> dict[str, Any]:
    """Raises ValueError for an adapter that is not LoRA, has invalid ranks, or would make PEFT import a module."""
    path = folder / ADAPTER
    try:
        config = _object(path)
    except ValueError as error:
        raise ValueError(f"{error}. Point to a folder that PEFT saved an adapter in.") from error
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{path} is of the type {str(config.get('peft_type'))[:40]!r}, and LORA is read. Train it so.")
    if config.get("megatron_config"):
        raise ValueError(f"{path} has a megatron_config, and PEFT imports the module that it names for it. Remove it.")
    pattern = config.get("rank_pattern") or {}
    ranks = [config.get("r"), *(pattern.values() if isinstance(pattern, dict) else [pattern])]
    if not all(type(rank) is int and 0 < rank <= MAX_RANK for rank in ranks):
        raise ValueError(f"{path} has ranks that are no numbers from 1 to {MAX_RANK}. Save the adapter again.")
    return config


def context_of(folder: Path) -> int | None:
    """Tokens that a model can attend to; None where its configuration does not say, or cannot be read."""
    try:
        config = _object(folder / "config.json")
    except ValueError:
        return None
    text = config.get("text_config", config)
    return next((text[name] for name in CONTEXT if text.get(name)), None)


def _object(path: Path) -> dict[str, Any]:
    """Raises ValueError when the file is no JSON object."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{path} holds {type(tree).__name__}, not an object")
    return tree
