"""Writes a trained model as its base with other weights: every file of the base is copied byte for byte, and of its
safetensors only values change. Checks that what was written is the policy that was trained: its log-probabilities."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mode
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
PROMPTS, TOKENS = 8, 256
"""What log-probabilities are compared on: prompts, and the first tokens of each."""
MAX_NATS = 1e-3
"""Difference that the order of sums in fp32 explains."""


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


def export_policy(base: Path, change: Callable[[Any], Any], prompts: Sequence[Sequence[int]], to: Path) -> None:
    """Write the model that `change` makes of the base, with its adapter merged in, into the folder `to`. Raises
    ValueError where the folder is not the policy."""
    policy = change(load_model(base))
    trained = log_probabilities(policy, prompts)
    merged = policy.merge_and_unload() if hasattr(policy, "merge_and_unload") else policy
    state = saved_state(merged)
    write_model(base, state, to)
    refuse_difference(farthest(trained, log_probabilities(merged, prompts)), "The merged model against the policy")
    del state
    round_to(base, merged)
    rounded = log_probabilities(merged, prompts)
    del policy, merged  # one model in memory at a time
    exported = log_probabilities(load_model(to), prompts)
    refuse_difference(farthest(rounded, exported), "The exported model against the merged one")


def load_model(folder: Path) -> Any:
    """The model of a folder in fp32, on the CPU. Raises ValueError where it is not what the files hold."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for _, name, held, mine in stored_tensors(folder, saved_state(model)):
        if mine is not None and not torch.equal(mine, held.to(mine.dtype)):
            raise ValueError(
                f"transformers loads {name} of {folder} as {type(model).__name__} with other values than the file has, "
                "so no export could have the base's form. Save the base with this version of transformers."
            )
    return model


def log_probabilities(model: Any, prompts: Sequence[Sequence[int]]) -> Tensor:
    """Of each prompt's tokens but the first, given those before it."""
    import torch

    model.eval()
    found: list[Tensor] = []
    with torch.no_grad():
        for ids in map(torch.tensor, prompts):
            logits = model(input_ids=ids[None]).logits[0, :-1].float()
            found.append(logits.log_softmax(-1).gather(-1, ids[1:, None]).flatten())
    return torch.cat(found)


def farthest(one: Tensor, other: Tensor) -> float:
    """The largest difference in nats."""
    return float((one - other).abs().max())


def refuse_difference(nats: float, what: str) -> None:
    if not nats < MAX_NATS:  # NaN too
        raise ValueError(
            f"{what}: a token's log-probability differs by {nats:.3g} nats, where rounding explains {MAX_NATS:g}. The "
            "export would be another model. Name other training.lora.target_modules (none that several layers share, "
            "no tied embedding), or report the base model's family."
        )


def round_to(base: Path, model: Any) -> None:
    """Round the model's weights, in place, to the dtypes that the base's files have."""
    import torch

    state = saved_state(model)
    held = {name: dtype for path in weight_files(base) for name, (dtype, _) in header(path).items()}
    dtypes = {state[mine].data_ptr(): held[name] for name, mine in places(base, state).items()}
    usual = mode(dtypes.values())  # of a tensor that is saved in parts
    for weight in model.parameters():
        half = {"BF16": torch.bfloat16, "F16": torch.float16}.get(dtypes.get(weight.data_ptr(), usual), torch.float32)
        weight.data = weight.data.to(half).float()
