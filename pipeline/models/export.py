"""Writes a trained model as its base with other weights. Every file of the base is copied byte for byte, and its
safetensors keep their tensors, dtypes and layout: only values change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import safe_open

from pipeline.core.model_files import INDEX, ONE_FILE, header, model_files, weight_files
from pipeline.models.templates import TEMPLATES

if TYPE_CHECKING:
    from torch import Tensor

OTHER_WEIGHTS = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".ggml", ".index.json",
)  # fmt: skip
"""Endings of weights and of their indices: an engine that prefers one of these would serve the base model."""
NOT_COPIED = ("README.md", "params.json", "trainer_state.json")
"""The base's model card, the config of Mistral's own weights, and what a training leaves beside weights."""
CONFIGS = ("config.json", "generation_config.json")


class StoredTensor(NamedTuple):
    """A tensor of the base's files, and the one that takes its place; None where the class does not know it."""

    file: Path
    name: str
    held: Tensor
    new: Tensor | None


def copied_files(base: Path) -> list[str]:
    """The files that an export takes over from its base, by their names relative to it."""
    index = [INDEX] if weight_files(base) != [base / ONE_FILE] else []
    kept = [name for name in model_files(base) if not name.endswith(OTHER_WEIGHTS) and name not in NOT_COPIED]
    return [*index, *(name for name in kept if Path(name).parent.name in ("", TEMPLATES))]


def copy_tokenizer(base: Path, to: Path) -> None:
    """What belongs to the base's tokenizer and processor, for an adapter."""
    _copy(base, [name for name in copied_files(base) if name not in (*CONFIGS, INDEX)], to)


def _copy(base: Path, names: list[str], to: Path) -> None:
    for name in names:
        (to / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(base / name, to / name)


def saved_state(model: Any) -> dict[str, Tensor]:
    """A model's tensors under the names that its class saves them by: transformers renames, fuses and splits some on
    loading. A tensor that is tied has all its names."""
    from transformers.core_model_loading import revert_weight_conversion

    left_out = model._keys_to_ignore_on_save or ()
    return revert_weight_conversion(
        model, {name: each.detach() for name, each in model.state_dict().items() if name not in left_out}
    )


def places(base: Path, state: Mapping[str, Tensor]) -> dict[str, str]:
    """By name in the base's files, the name in `state`: the same, or but for a prefix. Raises ValueError for tensors
    of `state` without a place of their own."""
    shapes = {name: shape for path in weight_files(base) for name, (_, shape) in header(path).items()}
    found = {name: name for name in state if name in shapes}
    for name in state.keys() - shapes.keys():
        fits = [each for each in shapes if f".{each}".endswith(f".{name}") or f".{name}".endswith(f".{each}")]
        if len(fits) == 1 and fits[0] not in found and shapes[fits[0]] == list(state[name].shape):
            found[fits[0]] = name
    stored = {_storage(state[name]) for name in found.values()}
    lost = sorted(name for name in state.keys() - set(found.values()) if _storage(state[name]) not in stored)
    lost += [name for name, mine in found.items() if shapes[name] != list(state[mine].shape)]
    if lost:
        raise ValueError(
            f"{len(lost)} tensors of the model have no place in the weights of {base}, such as {lost[0]}: transformers "
            "draws them at random or cannot save them under the names of the base. Save the base with this version "
            "of transformers (save_pretrained), and start again from that."
        )
    return found


def _storage(tensor: Any) -> tuple[int, int]:
    """The same of tied tensors, on the meta device too."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset()


def stored_tensors(base: Path, state: Mapping[str, Tensor]) -> Iterator[StoredTensor]:
    """Every tensor of the base's files, one in memory at a time."""
    found = places(base, state)
    for path in weight_files(base):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                mine = found.get(name)
                yield StoredTensor(path, name, file.get_tensor(name), None if mine is None else state[mine])


def write_model(base: Path, state: Mapping[str, Tensor], to: Path) -> None:
    """Write the model with the tensors of `state` (as `saved_state` names them) into the folder `to`, each in its
    base's dtype. Raises ValueError for values that are not finite there, and as `places` does."""
    import torch

    _copy(base, [*copied_files(base), *(path.name for path in weight_files(base))], to)
    offsets = {path.name: _offsets(path) for path in weight_files(base)}
    for file, name, held, new in stored_tensors(base, state):
        if new is None or torch.equal(new.cpu(), held.to(new.dtype)):
            continue
        value = new.cpu().to(held.dtype)
        if not bool(value.isfinite().all()):
            raise ValueError(f"{name} is not finite in {held.dtype}: the training diverged. Lower the learning rate.")
        with (to / file.name).open("r+b") as stream:
            stream.seek(offsets[file.name][name])
            stream.write(value.flatten().view(torch.uint8).numpy().data)


def _offsets(path: Path) -> dict[str, int]:
    """Where each tensor of a safetensors file begins, after the header and its length."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        tensors = json.loads(stream.read(length))
    return {name: 8 + length + each["data_offsets"][0] for name, each in tensors.items() if name != "__metadata__"}
