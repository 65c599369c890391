"""The plan's rows as the JSONL files that NeMo RL reads, and the section of its configuration that names them: the
prompt as the model is to read it, and JSON of what its completions are checked against."""

import json
import math
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

import pyarrow.parquet as pq

from pipeline.core.storage import write_atomically
from pipeline.models.rendering import chat_tokenizer, rendered
from pipeline.training.nemo.start import ACCURACY, PROCESSOR, REWARD
from pipeline.training.plan import TrainingPlan

TRAIN, VALIDATION = "train.jsonl", "validation.jsonl"
TOTAL, TOKENIZER = "policy.max_total_sequence_length", "policy.tokenizer.name"
"""Keys of NeMo RL that trainer_args may set, and that decide here as well."""
Row = dict[str, Any]


def section(plan: TrainingPlan, workspace: str) -> Row:
    """`data` of the configuration. What the example sets for its own data set is set here as well."""

    def source(file: str, environment: str) -> Row:
        return {
            "dataset_name": "ResponseDataset",
            "data_path": str(PurePath(workspace) / file),
            "split": "train",
            "split_validation_size": 0,
            "env_name": environment,
        }

    return {
        "shuffle": False,
        "train": source(TRAIN, REWARD),
        "validation": source(VALIDATION, ACCURACY) if plan.held_out is not None else None,
        "default": {
            "dataset_name": "ResponseDataset",
            "prompt_file": None,
            "system_prompt_file": None,
            "input_key": "input",
            "output_key": "output",
            "processor": PROCESSOR,
            "env_name": REWARD,
        },
    }


def write(plan: TrainingPlan, workspace: Path, max_completion_tokens: int) -> int:
    """Write the files that `section` names; returns the most tokens of a sequence, prompt and completion, which is
    NeMo RL's limit. Raises ValueError for prompts that the template does not render whole, or that are too
    long, and jinja2.TemplateError for those that it refuses."""
    train, held_out = (
        pq.read_table(ref.uri).to_pylist() if ref is not None else [] for ref in (plan.data, plan.held_out)
    )
    tokenizer = tokenizer_of(plan)
    texts = [rendered(tokenizer, row["prompt"]) for row in (*train, *held_out)]
    longest = max(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])
    total = _total(plan, longest, max_completion_tokens)
    _write_lines(workspace / TRAIN, train, texts)
    if held_out:
        # No release up to 0.7.0 has a key for several answers to a prompt: it stands in the file as often as it is
        # answered, and accuracy is the mean over the answers either way.
        asked = zip(held_out, texts[len(train) :], strict=True)
        several = [each for each in asked for _ in range(plan.training.validation.samples)]
        _write_lines(workspace / VALIDATION, *zip(*several, strict=True))
    return total


def tokenizer_of(plan: TrainingPlan) -> Any:
    """The tokenizer that trainer_args name, else the base model's. Raises ValueError for one without a template."""
    return chat_tokenizer(plan.trained_by().trainer_args.get(TOKENIZER, plan.base.uri))


def _write_lines(path: Path, rows: Sequence[Row], texts: Sequence[str]) -> None:
    checks = ({name: row[name] for name in ("prompt", "reference", "verifier")} for row in rows)
    lines = ({"input": text, "output": json.dumps(check)} for text, check in zip(texts, checks, strict=False))
    write_atomically(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def _total(plan: TrainingPlan, longest: int, max_completion_tokens: int) -> int:
    """Most tokens of a sequence: trainer_args' limit, or the longest prompt with a completion of full length."""
    total = int(plan.trained_by().trainer_args.get(TOTAL, longest + max_completion_tokens))
    if total <= longest:
        raise ValueError(f"trainer_args {TOTAL} {total}: the longest prompt has {longest} tokens. Raise it.")
    context = json.loads(Path(plan.base.uri, "config.json").read_bytes()).get("max_position_embeddings", math.inf)
    if total > context:
        raise ValueError(
            f"The longest sequence has {total} tokens, prompt and completion; the model in {plan.base.uri} reads "
            f"{context}. Lower max_completion_tokens, or leave long prompts out."
        )
    return total
