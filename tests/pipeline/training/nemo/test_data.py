"""The data files: NeMo RL's documented shapes, exactly the plan's rows, and what it cannot carry."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.demo import MODEL_DIR
from pipeline.training.nemo import data

from .plans import drawn, make_plan, prompts


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_grpo_rows_are_input_and_output_in_the_plans_order(tmp_path: Path) -> None:
    data.write(make_plan(tmp_path), tmp_path, 32)
    assert lines(tmp_path / "train.jsonl") == [{"input": p.prompt, "output": p.answer} for p in drawn(24)]
    held_out = lines(tmp_path / "validation.jsonl")
    assert len(held_out) == 6 * 2 and held_out[::2] == held_out[1::2], "each is answered twice"


def test_the_limit_is_the_longest_sequence(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    plan = make_plan(tmp_path)
    asked = [
        tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
        for row in prompts(24)
    ]
    assert data.write(plan, tmp_path, 32) == max(map(len, asked)) + 32


SYSTEM = [{"role": "system", "content": "x"}, *prompts(1)[0]["prompt"]]


@pytest.mark.parametrize(
    ("rows", "limit", "complaint"),
    [
        ([*prompts(3), {**prompts(1)[0], "prompt": SYSTEM}], 32, "1 of 10 prompts are not one message"),
        ([*prompts(4), {**prompts(1)[0], "verifier": "code"}], 32, "1 of 11 references are not checked"),
        (prompts(3), 5000, "reads 1024"),
    ],
)
def test_rows_that_cannot_be_carried_are_refused(
    rows: list[dict[str, Any]], limit: int, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=complaint):
        data.write(make_plan(tmp_path, rows=rows), tmp_path, limit)
