"""Leaves out rows that the model's context has no room for: a trainer would stop at the first of them."""

import json
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.model_files import context_of
from pipeline.recipe import Training
from pipeline.selection.pairing import LabelledRow

TEMPLATE_TOKENS = 256
"""Most that a chat template is taken to add by itself."""


def within_context(rows: Sequence[LabelledRow], folder: Path, training: Training) -> list[LabelledRow]:
    """Rows whose prompt leaves room for its answer, and for the longest completion that a method draws. A token is a
    byte or more, so that only long rows are tokenised."""
    context = context_of(folder)
    if context is None:
        return list(rows)
    drawn = max(method.completion_tokens or 1 for method in training.by_name().values())
    long = [i for i, row in enumerate(rows) if _most_tokens(row, drawn) > context]
    if not long:
        return list(rows)
    from pipeline.models.rendering import rendered  # a status imports this module, and no template engine
    from pipeline.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(str(folder))

    def tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    def needed(row: LabelledRow) -> int:
        return tokens(rendered(tokenizer, json.loads(row.prompt))) + max(tokens(row.completion) + 1, drawn)

    beyond = {i for i in long if needed(rows[i]) > context}
    return [row for i, row in enumerate(rows) if i not in beyond]


def _most_tokens(row: LabelledRow, drawn: int) -> int:
    return len(row.prompt.encode()) + max(len(row.completion.encode()), drawn) + TEMPLATE_TOKENS
