"""The plan's rows as the JSONL files that NeMo RL reads, and the section of its configuration that names them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any

import pyarrow.parquet as pq

from pipeline.core.conversation import holds_tools
from pipeline.core.storage import DatasetRef, digest_file, write_atomically
from pipeline.training.nemo.methods import Rendering, Row, rendering
from pipeline.training.plan import TrainingPlan

TRAIN, VALIDATION = "train.jsonl", "validation.jsonl"


def section(plan: TrainingPlan, workspace: str) -> dict[str, Any]:
    """`data` of the configuration. What the example sets for its own data set is set here as well."""
    method = rendering(plan)
    default: Row = {"dataset_name": method.dataset, "prompt_file": None, "system_prompt_file": None}
    default |= method.data_default

    def source(file: str) -> Row:
        rows: Row = {"dataset_name": method.dataset, "data_path": str(PurePath(workspace) / file), "split": "train"}
        return rows | method.data_source

    held_out = source(VALIDATION) if plan.held_out is not None else None
    return {"shuffle": False, "train": source(TRAIN), "validation": held_out, "default": default}


def write(plan: TrainingPlan, workspace: Path) -> int:
    """Write the files that `section` names; returns the tokens of the longest sequence, prompt and completion, which is
    NeMo RL's limit: it leaves what is longer out of the loss. Raises ValueError when the rows are not those of the
    plan, cannot be carried, or are too long."""
    assert plan.data is not None, "only a plan that trains comes here"
    rows, held_out = _read(plan.data), _read(plan.held_out) if plan.held_out is not None else []
    method = rendering(plan)
    if any(holds_tools(row["prompt"]) for row in [*rows, *held_out]):
        raise ValueError(
            "Prompts hold tools or calls, and training.engine nemo carries none. Set training.engine to trl, or leave "
            "such rows out with selection.tools: leave_out."
        )
    method.refuse([*rows, *held_out])
    _write_lines(workspace / TRAIN, map(method.line, rows))
    if held_out:
        # No release up to 0.7.0 has a key for several answers to a prompt: it stands in the file as often as it is
        # answered, and accuracy is the mean over the answers either way.
        samples = plan.training.validation.samples
        _write_lines(workspace / VALIDATION, [line for line in map(method.line, held_out) for _ in range(samples)])
    return _longest(plan, method, [*rows, *held_out])


def refuse(plan: TrainingPlan) -> None:
    """Raise ValueError for rows that cannot be carried: asked before a cluster is."""
    refs = [ref for ref in (plan.data, plan.held_out) if ref is not None]
    rendering(plan).refuse([row for ref in refs for row in _read(ref)])


def _read(ref: DatasetRef) -> list[Row]:
    if digest_file(Path(ref.uri)) != ref.digest:
        raise ValueError(f"{ref.uri} changed since the plan was made. Make the plan again: pt retry training_plan")
    return pq.read_table(ref.uri).to_pylist()


def _write_lines(path: Path, rows: Iterable[Row]) -> None:
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _longest(plan: TrainingPlan, method: Rendering, rows: Sequence[Row]) -> int:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(plan.base.uri)
    if not tokenizer.chat_template:
        raise ValueError(f"The tokenizer in {plan.base.uri} has no chat template. Save one with the weights.")

    def tokens(messages: Sequence[Row], asked: bool) -> int:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asked)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    longest = method.longest(rows, tokens)
    context = json.loads((Path(plan.base.uri) / "config.json").read_text()).get("max_position_embeddings", longest)
    if longest > context:
        raise ValueError(
            f"The longest sequence has {longest} tokens, prompt and completion; the model in {plan.base.uri} reads "
            f"{context}. Lower max_completion_tokens, or leave long prompts out."
        )
    return longest
