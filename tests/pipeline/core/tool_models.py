"""The embedded model with letters among its tokens and a chat template that has tools; and what it learns by heart."""

import json
import string
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.core.conversation import conversation
from pipeline.demo import MODEL_DIR
from pipeline.models.rendering import rendered
from pipeline.training.methods import tokenised
from tests.pipeline.core.tool_templates import TOOL_TEMPLATE, answer, calls

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {}}}
QUESTION = {"role": "user", "content": "1+1="}
CALL = answer("f", {"a": "b"})


def tool_model(target: Path) -> Path:
    """Written to `target`."""
    torch.manual_seed(0)
    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL_DIR)
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", *string.ascii_letters, *'{}":,_<>/. ', "\n"])
    tokenizer.chat_template = TOOL_TEMPLATE
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


def memorise(folder: Path, rows: list[dict[str, Any]], steps: int = 200) -> None:
    """Train the model in `folder` until it answers each row's `prompt` with its `completion`, greedily."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    answers = tokenised(tokenizer, [tokenizer.eos_token_id], rows).labelled()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        losses = [
            model(input_ids=torch.tensor([each["input_ids"]]), labels=torch.tensor([each["labels"]])).loss
            for each in answers
        ]
        sum(losses).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if max(losses) < 0.05:
            break
    else:
        raise AssertionError(f"not learned: {rendered(tokenizer, rows[0]['prompt'])!r}")
    torch.set_num_threads(threads)
    model.save_pretrained(folder)


def calling_model(target: Path) -> Path:
    """A model that answers QUESTION with CALL where TOOL is offered, and with 2 once it has the result."""
    called = {"role": "assistant", "content": "", "tool_calls": calls(("f", {"a": "b"}))}
    result = {"role": "tool", "content": "2", "tool_call_id": "c0"}
    offered = json.dumps([TOOL])
    first, second = (
        conversation({"messages": messages, "tools": offered}) for messages in ([QUESTION], [QUESTION, called, result])
    )
    memorise(tool_model(target), [{"prompt": first, "completion": CALL}, {"prompt": second, "completion": "2"}])
    return target
