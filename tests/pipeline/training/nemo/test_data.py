"""The data files: NeMo RL's documented shapes, exactly the plan's rows, and what it cannot carry."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.demo import MODEL_DIR
from pipeline.training.nemo import data

from .plans import DPO_SETTINGS, GRPO_SETTINGS, drawn, make_plan, pairs, prompts


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_grpo_rows_are_input_and_output_in_the_plans_order(tmp_path: Path) -> None:
    data.write(make_plan(tmp_path), tmp_path)
    assert lines(tmp_path / "train.jsonl") == [{"input": p.prompt, "output": p.answer} for p in drawn(24)]
    held_out = lines(tmp_path / "validation.jsonl")
    assert len(held_out) == 6 * 2 and held_out[::2] == held_out[1::2], "each is answered twice"


def test_dpo_rows_are_ranked_completions_after_any_conversation(tmp_path: Path) -> None:
    row = pairs(1)[0]
    row["prompt"] = [{"role": "system", "content": "Be brief.\nß"}, *row["prompt"]]
    data.write(make_plan(tmp_path, "dpo", rows=[row] * 48), tmp_path)
    assert lines(tmp_path / "train.jsonl")[0] == {
        "context": row["prompt"],
        "completions": [{"rank": 0, "completion": row["chosen"]}, {"rank": 1, "completion": row["rejected"]}],
    }
    assert not (tmp_path / "validation.jsonl").exists()


def test_the_limit_is_the_longest_sequence(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    plan = make_plan(tmp_path)
    asked = [
        tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
        for row in prompts(24)
    ]
    assert data.write(plan, tmp_path) == max(map(len, asked)) + GRPO_SETTINGS.max_completion_tokens


SYSTEM = [{"role": "system", "content": "x"}, *prompts(1)[0]["prompt"]]


@pytest.mark.parametrize(
    ("method", "changes", "complaint"),
    [
        ("grpo", {"rows": [*prompts(3), {**prompts(1)[0], "prompt": SYSTEM}]}, "1 of 10 prompts are not one message"),
        ("grpo", {"rows": [*prompts(4), {**prompts(1)[0], "verifier": "code"}]}, "1 of 11 references are not checked"),
        ("grpo", {"grpo": {**GRPO_SETTINGS.model_dump(), "max_completion_tokens": 5000}}, "reads 1024"),
        ("dpo", {"dpo": {**DPO_SETTINGS.model_dump(), "max_tokens": 20}}, r"more than training\.dpo\.max_tokens 20"),
    ],
)
def test_rows_that_cannot_be_carried_are_refused(
    method: str, changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=complaint):
        data.write(make_plan(tmp_path, method, **changes), tmp_path)


@pytest.mark.parametrize("name", ["data.parquet", "held_out.parquet"])
def test_rows_that_changed_since_the_plan_are_refused(name: str, tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    with (tmp_path / name).open("ab") as stream:
        stream.write(b"\0")
    with pytest.raises(ValueError, match="changed since the plan was made"):
        data.write(plan, tmp_path)
