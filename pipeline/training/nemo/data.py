"""The plan's rows as the JSONL files that NeMo RL reads, and the section of its configuration that names them."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

import pyarrow.parquet as pq

from pipeline.core.storage import write_atomically
from pipeline.training.plan import TrainingPlan

TRAIN, VALIDATION = "train.jsonl", "validation.jsonl"
Row = dict[str, Any]


def section(plan: TrainingPlan, workspace: str) -> Row:
    """`data` of the configuration. What the example sets for its own data set is set here as well."""

    def source(file: str) -> Row:
        path = str(PurePath(workspace) / file)
        return {"dataset_name": "ResponseDataset", "data_path": path, "split": "train", "split_validation_size": 0}

    return {
        "shuffle": False,
        "train": source(TRAIN),
        "validation": source(VALIDATION) if plan.held_out is not None else None,
        "default": {
            "dataset_name": "ResponseDataset",
            "prompt_file": None,
            "system_prompt_file": None,
            "input_key": "input",
            "output_key": "output",
            "processor": "math_hf_data_processor",
            "env_name": "math",
        },
    }


def write(plan: TrainingPlan, workspace: Path, max_completion_tokens: int) -> int:
    """Write the files that `section` names; returns the tokens of the longest sequence, prompt and completion, which is
    NeMo RL's limit: it leaves what is longer out of the loss. Raises ValueError for rows that cannot be carried, or are
    too long."""
    refuse(plan)
    rows, held_out = _rows(plan)
    _write_lines(workspace / TRAIN, rows)
    if held_out:
        # No release up to 0.7.0 has a key for several answers to a prompt: it stands in the file as often as it is
        # answered, and accuracy is the mean over the answers either way.
        _write_lines(workspace / VALIDATION, [row for row in held_out for _ in range(plan.training.validation.samples)])
    return _longest_prompt(plan, [*rows, *held_out], max_completion_tokens) + max_completion_tokens


def refuse(plan: TrainingPlan) -> None:
    """Raise ValueError for rows that ResponseDataset and the math environment cannot carry."""
    rows = [row for part in _rows(plan) for row in part]
    shapes = Counter("+".join(message["role"] for message in row["prompt"]) for row in rows)
    kinds = Counter(row["verifier"] for row in rows if row["verifier"] not in (None, "math"))
    for what, others in (
        ("prompts are not one message of the user", {shape: n for shape, n in shapes.items() if shape != "user"}),
        ("references are not checked as math", kinds),
    ):
        if others:
            raise ValueError(
                f"{sum(others.values())} of {len(rows)} {what} ({dict(others)}), and NeMo RL carries nothing else. Set "
                "training.engine trl."
            )


def _rows(plan: TrainingPlan) -> tuple[list[Row], list[Row]]:
    """Those to train on, and the held-out ones."""
    train, held_out = (
        pq.read_table(ref.uri).to_pylist() if ref is not None else [] for ref in (plan.data, plan.held_out)
    )
    return train, held_out


def _write_lines(path: Path, rows: Sequence[Row]) -> None:
    lines = ({"input": row["prompt"][0]["content"], "output": row["reference"]} for row in rows)
    write_atomically(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def _longest_prompt(plan: TrainingPlan, rows: Sequence[Row], max_completion_tokens: int) -> int:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(plan.base.uri)
    if not tokenizer.chat_template:
        raise ValueError(f"The tokenizer in {plan.base.uri} has no chat template. Save one with the weights.")
    prompts = {row["prompt"][0]["content"]: row["prompt"] for row in rows}.values()
    texts = [tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True) for prompt in prompts]
    longest = max(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])
    context = json.loads((Path(plan.base.uri) / "config.json").read_text()).get("max_position_embeddings", math.inf)
    if longest + max_completion_tokens > context:
        raise ValueError(
            f"The longest sequence has {longest + max_completion_tokens} tokens, prompt and completion; the model in "
            f"{plan.base.uri} reads {context}. Lower max_completion_tokens, or leave long prompts out."
        )
    return longest
