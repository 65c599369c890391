"""The data files: NeMo RL's documented shapes, exactly the plan's rows, rendered as TRL renders them."""

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError

from pipeline.demo import MODEL_DIR
from pipeline.models.rendering import chat_tokenizer
from pipeline.training.nemo import data
from pipeline.training.nemo.start import as_rendered
from tests.pipeline.core.tool_templates import LOOKUP, TOOL_TEMPLATE
from tests.pipeline.training.plans import with_calls

from .plans import SECTIONS, drawn, make_plan, prompts

pytestmark = pytest.mark.slow  # its imports take seconds


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_rows_are_the_rendered_prompts_in_the_plans_order(tmp_path: Path) -> None:
    data.write(make_plan(tmp_path), tmp_path, 32)
    found = lines(tmp_path / "train.jsonl")
    assert [json.loads(line["output"]) for line in found] == prompts(24)
    assert all(problem.prompt in line["input"] for problem, line in zip(drawn(24), found, strict=True))
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


QUESTION = prompts(1)[0]
TURNS = [
    {"role": "system", "content": "7+2"},
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "3"},
]


def test_system_messages_and_turns_read_as_under_trl(tmp_path: Path) -> None:
    """By the same template, in one text, which NeMo RL only makes token ids of."""
    plan = make_plan(tmp_path, rows=[{**QUESTION, "prompt": TURNS, "verifier": "code"}])
    data.write(plan, tmp_path, 32)
    (line,) = lines(tmp_path / "train.jsonl")
    tokenizer = chat_tokenizer(plan.base.uri)
    assert line["input"] == tokenizer.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    assert json.loads(line["output"]) == {**QUESTION, "prompt": TURNS, "verifier": "code"}
    messages = [{"role": role, "content": line[side]} for role, side in (("user", "input"), ("assistant", "output"))]
    datum = as_rendered({"messages": messages, "task_name": "train"}, None, tokenizer, 1024, 3)
    (prompt,) = datum["message_log"]
    wanted = tokenizer.apply_chat_template(TURNS, add_generation_prompt=True, return_dict=False)
    assert prompt["token_ids"].tolist() == wanted and datum["length"] == len(wanted)
    assert datum["extra_env_info"] == json.loads(line["output"]) and datum["idx"] == 3


def test_tools_are_rendered_too(tmp_path: Path) -> None:
    row = with_calls(QUESTION, 1)
    with_tools = saved(tmp_path, TOOL_TEMPLATE)
    data.write(make_plan(tmp_path, rows=[row], **grpo(**{data.TOKENIZER: str(with_tools)})), tmp_path, 32)
    (line,) = lines(tmp_path / "train.jsonl")
    assert LOOKUP["function"]["name"] in line["input"] and '"add"' in line["input"], "what is offered, and a call"
    assert len(json.loads(line["output"])["prompt"]) == len(row["prompt"])


def saved(root: Path, template: str) -> Path:
    """A folder with the model's tokenizer and another template."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL_DIR)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(root / "tokenizer")
    return root / "tokenizer"


def grpo(**args: Any) -> dict[str, Any]:
    return {"grpo": {**SECTIONS["grpo"].model_dump(), "trainer_args": args}}


@pytest.mark.parametrize(
    ("sections", "limit", "complaint"),
    [({}, 5000, "reads 1024"), (grpo(**{data.TOTAL: 20}), 32, f"{data.TOTAL} 20: the longest prompt has")],
)
def test_prompts_that_are_too_long_are_refused(
    sections: dict[str, Any], limit: int, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=complaint):
        data.write(make_plan(tmp_path, **sections), tmp_path, limit)


def test_a_tokenizer_and_a_length_of_its_own_are_taken(tmp_path: Path) -> None:
    other = saved(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}")
    plan = make_plan(tmp_path, **grpo(**{data.TOKENIZER: str(other), data.TOTAL: 400}))
    assert data.write(plan, tmp_path, 32) == 400
    assert [line["input"] for line in lines(tmp_path / "train.jsonl")] == [p.prompt for p in drawn(24)]


def test_a_prompt_that_the_template_refuses_is_no_crash(tmp_path: Path) -> None:
    strict = saved(tmp_path, "{{ raise_exception('no system role') }}")
    plan = make_plan(tmp_path, **grpo(**{data.TOKENIZER: str(strict)}))
    with pytest.raises(TemplateError, match="no system role"):
        data.write(plan, tmp_path, 32)
