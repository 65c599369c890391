"""Checks that a written model is the policy that was trained: its base's files and tensors but for the trained values,
and the policy's log-probabilities."""

from __future__ import annotations

import filecmp
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mode
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from pipeline.core.model_files import header, model_files, weight_files
from pipeline.models.export import copied_files, places, saved_state, stored_tensors, write_model

if TYPE_CHECKING:
    from torch import Tensor

PROMPTS, TOKENS = 8, 256
"""What log-probabilities are compared on: prompts, and the first tokens of each."""
MAX_NATS = 1e-3
"""Difference that the order of sums in fp32 explains."""


def export_policy(base: Path, change: Callable[[Any], Any], prompts: Sequence[Sequence[int]], to: Path) -> float:
    """Write the model that `change` makes of the base, with its adapter merged in, into the folder `to`. Returns by how
    much its dtypes move a token's log-probability, in nats. Raises ValueError where the folder is not the policy."""
    policy = change(load_model(base))
    trained = log_probabilities(policy, prompts)
    merged = policy.merge_and_unload() if hasattr(policy, "merge_and_unload") else policy
    state = saved_state(merged)
    write_model(base, state, to)
    refuse_changed_files(base, to, state)
    refuse_difference(farthest(trained, log_probabilities(merged, prompts)), "The merged model against the policy")
    del state
    round_to(base, merged)
    rounded = log_probabilities(merged, prompts)
    del policy, merged  # one model in memory at a time
    exported = log_probabilities(load_model(to), prompts)
    refuse_difference(farthest(rounded, exported), "The exported model against the merged one")
    return farthest(trained, exported)


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


def refuse_changed_files(base: Path, folder: Path, state: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless `folder` has the base's files, and in its weights the values of `state` and else the
    base's."""
    import torch

    copied = copied_files(base)
    others = {*model_files(folder)} ^ {*copied, *(path.name for path in weight_files(base))}
    differ = [name for name in copied if not filecmp.cmp(base / name, folder / name, shallow=False)]
    differ += [path.name for path in weight_files(base) if header(path) != header(folder / path.name)]
    if differ := [*differ, *sorted(others)]:
        raise ValueError(f"{folder} is not {base} with other weights: {', '.join(differ)}.")
    for file, name, held, new in stored_tensors(base, state):
        with safe_open(folder / file.name, framework="pt") as written:
            value = written.get_tensor(name)
        wanted = held if new is None else new.to(held.dtype)
        if not torch.equal(value.flatten().view(torch.uint8), wanted.flatten().view(torch.uint8)):
            raise ValueError(f"{name} in {folder} is neither the base's nor the trained one. Look at the disk.")


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
