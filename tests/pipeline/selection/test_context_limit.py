"""Rows that a model's context has no room for, by the tokenizer and template of a model with 256 positions."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.recipe import Training
from pipeline.selection.trainable import within_context

from .labelled import row

pytestmark = pytest.mark.slow


def test_rows_beyond_the_context_are_left_out(family: Callable[[str], Path]) -> None:
    folder, training = family("gpt2"), Training.model_validate({"grpo": {"max_completion_tokens": 32}})
    short, long_prompt = row("a", 1.0, "Add 1 and 2."), row("b", 1.0, "Add 1 and 2. " * 60)
    long_answer = row("c", 1.0, "Add 1 and 2.", completion="1 + 2 is 3 " * 60)
    folded = row("d", 1.0, " and" * 60)  # four bytes a token
    rows = [short, long_prompt, long_answer, folded]
    assert within_context(rows, folder, training) == [short, folded]
    crowded = Training.model_validate({"grpo": {"max_completion_tokens": 255}})
    assert within_context(rows, folder, crowded) == []


def test_without_a_known_context_no_row_is_left_out(tmp_path: Path) -> None:
    rows = [row("a", 1.0, "Add " * 1000)]
    assert within_context(rows, tmp_path, Training()) == rows
