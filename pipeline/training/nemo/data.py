"""The plan's rows as the JSONL files that NeMo RL reads, and the section of its configuration that names them.

GRPO's go into ResponseDataset's `input` and `output`, which is one message of the user and the reference: a system
prompt or an earlier turn has no place there, and such rows are refused. DPO's go into PreferenceDataset's `context` and
ranked `completions`, which hold any conversation. NeMo RL leaves sequences beyond its limit out of the loss, so the
limit is the longest one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any

import pyarrow.parquet as pq

from pipeline.recipe import DPO, GRPO
from pipeline.storage import DatasetRef, digest_file, write_atomically
from pipeline.training.plan import TrainingPlan

Row = dict[str, Any]
TRAIN, VALIDATION = "train.jsonl", "validation.jsonl"


def section(plan: TrainingPlan, workspace: str) -> dict[str, Any]:
    """`data` of the configuration. What the example sets for its own data set is set here as well."""
    response = isinstance(plan.algorithm, GRPO)
    name = "ResponseDataset" if response else "PreferenceDataset"
    default: Row = {"dataset_name": name, "prompt_file": None, "system_prompt_file": None}
    if response:
        default |= {"input_key": "input", "output_key": "output"}
        default |= {"processor": "math_hf_data_processor", "env_name": "math"}

    def source(file: str) -> Row:
        rows: Row = {"dataset_name": name, "data_path": str(PurePath(workspace) / file), "split": "train"}
        return rows | ({"split_validation_size": 0} if response else {})

    held_out = source(VALIDATION) if plan.held_out is not None else None
    return {"shuffle": False, "train": source(TRAIN), "validation": held_out, "default": default}


def write(plan: TrainingPlan, workspace: Path) -> int:
    """Write the files that `section` names; returns the tokens of the longest sequence, prompt and completion.

    Raises ValueError when the rows are not those of the plan, cannot be carried, or are too long.
    """
    assert plan.data is not None, "only a plan that trains comes here"
    rows, held_out = _read(plan.data), _read(plan.held_out) if plan.held_out is not None else []
    if isinstance(plan.algorithm, GRPO):
        _refuse_conversations([*rows, *held_out])
        _refuse_other_checks([*rows, *held_out])
        carried, asked = map(_response, rows), map(_response, held_out)
    else:
        carried, asked = map(_preference, rows), iter(())
    _write_lines(workspace / TRAIN, carried)
    if held_out:
        _write_lines(workspace / VALIDATION, asked)
    return _longest(plan, [*rows, *held_out])


def _read(ref: DatasetRef) -> list[Row]:
    if digest_file(Path(ref.uri)) != ref.digest:
        raise ValueError(
            f"{ref.uri} changed since the plan was made. Make the plan anew: python -m jobs.retry training_plan"
        )
    return pq.read_table(ref.uri).to_pylist()


def _refuse_conversations(rows: Sequence[Row]) -> None:
    shapes = Counter("+".join(message["role"] for message in row["prompt"]) for row in rows)
    if others := {shape: n for shape, n in shapes.items() if shape != "user"}:
        raise ValueError(
            f"{sum(others.values())} of {len(rows)} prompts are not one message of the user ({dict(others)}), and NeMo "
            "RL's ResponseDataset carries nothing else. Set training.engine trl."
        )


def _refuse_other_checks(rows: Sequence[Row]) -> None:
    kinds = Counter(row["verifier"] for row in rows if row["verifier"] not in (None, "math"))
    if kinds:
        raise ValueError(
            f"{kinds.total()} of {len(rows)} references are not checked as math ({dict(kinds)}), and NeMo RL's math "
            "environment checks nothing else. Set training.engine trl."
        )


def _response(row: Row) -> Row:
    return {"input": row["prompt"][0]["content"], "output": row["reference"]}


def _preference(row: Row) -> Row:
    ranked = [{"rank": rank, "completion": row[side]} for rank, side in enumerate(("chosen", "rejected"))]
    return {"context": row["prompt"], "completions": ranked}


def _write_lines(path: Path, rows: Iterable[Row]) -> None:
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _longest(plan: TrainingPlan, rows: Sequence[Row]) -> int:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(plan.base.uri)
    if not tokenizer.chat_template:
        raise ValueError(f"The tokenizer in {plan.base.uri} has no chat template. Save one beside the weights.")

    def tokens(messages: Sequence[Row], asked: bool) -> int:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asked)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    algorithm = plan.algorithm
    if isinstance(algorithm, DPO):
        seen = {json.dumps(row["prompt"] + row[side]) for row in rows for side in ("chosen", "rejected")}
        longest = max(tokens(json.loads(each), asked=False) for each in seen)
        if algorithm.max_tokens is not None and longest > algorithm.max_tokens:
            raise ValueError(
                f"A pair has {longest} tokens, more than training.dpo.max_tokens {algorithm.max_tokens}: NeMo RL would "
                "leave it out instead of cutting it. Raise max_tokens, or set training.engine trl."
            )
    else:
        seen = {json.dumps(row["prompt"]) for row in rows}
        longest = max(tokens(json.loads(each), asked=True) for each in seen) + algorithm.max_completion_tokens
    context = json.loads((Path(plan.base.uri) / "config.json").read_text()).get("max_position_embeddings", longest)
    if longest > context:
        raise ValueError(
            f"The longest sequence has {longest} tokens, prompt and completion; the model in {plan.base.uri} reads "
            f"{context}. Lower max_completion_tokens, or leave long prompts out."
        )
    return longest
