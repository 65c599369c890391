"""Whether an exported model is its base with other weights, judged without a line of the pipeline that made it: files,
tensors, tokens, what the policy computes, and the prompts that were trained."""

import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.training.methods import trainer_of
from pipeline.training.plan import TrainingPlan

PROBES = ("Add 3 and 4.", " two  spaces", "line\n\nbreak\t", "naïve Zoë, 東京 🙂", "<|im_end|></s><eos>")
NATS = 1e-3
"""Largest difference of a token's log-probability that merging in float32 makes."""
VISION = re.compile(r"vision|visual")
LAYER = re.compile(r"\b(layers|h)\.\d+\..*")


def file_faults(base: Path, export: Path) -> Iterator[str]:
    """Files that are lost, added or not the base's byte for byte, weights apart."""
    before, after = _files(base), _files(export)
    for name in sorted(before.keys() | after.keys()):
        if name not in after or name not in before:
            yield f"{name} is {'lost' if name in before else 'added'}"
        elif before[name].read_bytes() != after[name].read_bytes():
            yield f"{name} differs"


def _files(folder: Path) -> dict[str, Path]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".safetensors")
    return {str(path.relative_to(folder)): path for path in files}


def tensor_faults(base: Path, adapter: Path, export: Path) -> Iterator[str]:
    """Tensors that are lost, added, of another dtype or shape, or changed without an adapter."""
    before, after = _tensors(base), _tensors(export)
    for what, names in (("lost", before.keys() - after.keys()), ("added", after.keys() - before.keys())):
        if names:
            yield f"{len(names)} tensors {what}, such as {min(names)}"
    shared = sorted(before.keys() & after.keys())
    for what, of in (("dtype", lambda t: t.dtype), ("shape", lambda t: t.shape)):
        if other := [name for name in shared if of(before[name]) != of(after[name])]:
            both = " and ".join(str(of(tensors[other[0]])) for tensors in (before, after))
            yield f"{len(other)} tensors of another {what}, such as {other[0]}: {both}"
    adapted = {_place(name) for name in _tensors(adapter) if ".lora_A." in name}
    changed = {name for name in shared if not torch.equal(before[name].float(), after[name].float())}
    trained = tuple(f"{place}." for place in adapted)  # of stacked experts the adapter is named by what holds them
    if untrained := sorted(n for n in changed if VISION.search(n) or not f"{_place(n)}.".startswith(trained)):
        yield f"{len(untrained)} tensors changed that were not trained, such as {untrained[0]}"
    if not changed:
        yield "no tensor changed"


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def _place(name: str) -> str:
    """The module in its layer, whatever stands before and behind."""
    in_layer = LAYER.search(name.split(".lora_A.")[0].removesuffix(".base_layer").removesuffix(".weight"))
    return in_layer[0] if in_layer else name


def token_faults(base: Path, export: Path) -> Iterator[str]:
    theirs, ours = Tokenizer.from_file(str(base / "tokenizer.json")), AutoTokenizer.from_pretrained(export)
    for probe in PROBES:
        ids = theirs.encode(probe, add_special_tokens=False).ids
        if ours(probe, add_special_tokens=False)["input_ids"] != ids:
            yield f"other tokens for {probe!r}"
        elif ours.decode(ids) != theirs.decode(ids, skip_special_tokens=False):
            yield f"another text for the tokens of {probe!r}"


def prompt_faults(plan: TrainingPlan, export: Path) -> Iterator[str]:
    """Prompts that the trainer has other tokens for than the exported template renders."""
    assert plan.data is not None
    prompts = pq.read_table(plan.data.uri, columns=["prompt"])["prompt"].to_pylist()
    with tempfile.TemporaryDirectory() as folder:
        builder: Any = trainer_of(plan, Path(folder), lambda **_: [])  # type: ignore[arg-type]
        trainer: Any = builder.trainer(builder.arguments(), [])
    rows = trainer.train_dataset
    if plan.trained_by().kind == "grpo":
        trained = trainer._tokenize_prompts(prompts)[0]
    elif "labels" in rows.column_names:
        trained = [ids[: labels.count(-100)] for ids, labels in zip(rows["input_ids"], rows["labels"], strict=True)]
    else:
        trained = list(rows["prompt_ids"])
    tokenizer = AutoTokenizer.from_pretrained(export)
    plain = [[{key: value for key, value in m.items() if value is not None} for m in prompt] for prompt in prompts]
    served = [tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=False) for m in plain]
    if other := [place for place, ids in enumerate(served) if list(trained[place]) != ids]:
        yield f"{len(other)} of {len(served)} prompts are trained in other tokens than they are served"


class Merge(NamedTuple):
    """Largest differences of a token's log-probability from the trained policy's."""

    nats: float
    """Of the adapter merged in float32 by peft."""
    rounded_nats: float
    """Of the exported model. Where a router picks experts, rounding may pick another one."""
    faults: tuple[str, ...]


def merge(base: Path, adapter: Path, export: Path, chats: Sequence[list[dict[str, str]]]) -> Merge:
    """Whether the export is what peft merges in float32, rounded to the base's dtype, to the bit."""
    tokenizer = AutoTokenizer.from_pretrained(export)
    rows = [tokenizer.apply_chat_template(messages, return_dict=False) for messages in chats]
    policy: Any = PeftModel.from_pretrained(_loaded(base), str(adapter)).eval()
    scores, exported = [_scores(policy, ids) for ids in rows], _loaded(export)
    merged = policy.merge_and_unload().eval()
    nats, rounded = (
        max(float((_scores(model, ids) - theirs).abs().max()) for ids, theirs in zip(rows, scores, strict=True))
        for model in (merged, exported)
    )
    dtype = {name: tensor.dtype for name, tensor in _loaded(base, "auto").state_dict().items()}
    after = exported.state_dict()
    other = [
        name
        for name, each in merged.state_dict().items()
        if not torch.equal(each.to(dtype[name]), after[name].to(dtype[name]))
    ]
    faults = [f"{len(other)} tensors are not the merged ones, such as {other[0]}"] if other else []
    if nats > NATS:
        faults.append(f"the merged model differs from the policy by {nats:.2g} nats")
    return Merge(nats, rounded, tuple(faults))


def _loaded(folder: Path, dtype: Any = torch.float32) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def _scores(model: Any, ids: list[int]) -> torch.Tensor:
    tokens = torch.tensor([ids])
    with torch.no_grad():
        return model(input_ids=tokens).logits[:, :-1].float().log_softmax(-1).gather(-1, tokens[:, 1:, None])
