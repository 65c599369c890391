"""Prompts and answers as tokens: what generation sees and draws, whatever lay in a table on the way."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

import benchmarks
from pipeline.demo import MODEL_DIR
from pipeline.models.rendering import rendered
from pipeline.selection.tables import CHAT, to_rows
from pipeline.training.methods import closed_thought, end_token, tokenised

pytestmark = pytest.mark.slow  # its imports take seconds

CALLS = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}{% for call in m.tool_calls %}\
{{ call.function.name }}({{ call.function.arguments if call.function.arguments is string \
else call.function.arguments | tojson }}){% endfor %}{% endif %}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<assistant>{% endif %}"""
"""A template as chat models have them: with calls, and with a line break after an answer's end."""


TEMPLATES = Path(benchmarks.__file__).parent / "templates"
QWEN3, OPENS = ((TEMPLATES / f"{name}.jinja").read_text() for name in ("qwen3", "thinkopen"))
"""One writes a thought before the last answer alone, the other opens one and takes thoughts out of answers."""


def asked(name: str, arguments: Any) -> list[dict[str, Any]]:
    """A conversation with a system prompt, earlier turns and a tool."""
    call = [{"type": "function", "function": {"name": name, "arguments": arguments}}]
    return [
        {"role": "system", "content": "No voucher."},
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3"},
        {"role": "assistant", "content": "", "tool_calls": call},
        {"role": "tool", "content": "DHL"},
    ]


@pytest.fixture
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_DIR, padding_side="left")


@pytest.fixture
def stops(tokenizer: Any) -> list[int]:
    return [tokenizer.eos_token_id]


@pytest.mark.parametrize("in_text", [True, False], ids=["arguments in text", "arguments as an object"])
def test_a_prompt_with_calls_is_the_same_behind_a_table(in_text: bool, tokenizer: Any, tmp_path: Path) -> None:
    """Arrow gives rows of two tools one struct with all their keys, where it is let."""
    tokenizer.chat_template = CALLS
    arguments = [{"order": "K92"}, {"euro": 36}]
    conversations = [asked(f"tool{n}", json.dumps(each) if in_text else each) for n, each in enumerate(arguments)] + [
        [{"role": "user", "content": "1"}]
    ]
    before = [tokenizer.apply_chat_template(each, tokenize=False, add_generation_prompt=True) for each in conversations]
    prompts = [json.dumps(each, ensure_ascii=False) for each in conversations]
    path = tmp_path / "table.parquet"
    column = pa.table({"prompt": pa.array([to_rows(each) for each in prompts], CHAT)})
    pq.write_table(column, path)
    after = pq.read_table(path)["prompt"].to_pylist()
    assert [rendered(tokenizer, each) for each in after] == before
    assert "null" not in "".join(before) and '"order": "K92"' in before[0]


def test_loss_falls_on_the_answer_and_its_end_alone(tokenizer: Any, stops: list[int]) -> None:
    tokenizer.chat_template = CALLS
    prompt = asked("f", "{}")
    (row,) = tokenised(tokenizer, stops, [{"prompt": prompt, "completion": "7*2=14."}]).labelled()
    trained = [label for label in row["labels"] if label != -100]
    assert tokenizer.decode(trained) == "7*2=14.<|im_end|>", "no line break after the end"
    context = row["input_ids"][: -len(trained)]
    assert context == tokenizer(rendered(tokenizer, prompt), add_special_tokens=False)["input_ids"]
    assert row["labels"][: len(context)] == [-100] * len(context)


@pytest.mark.parametrize(
    ("template", "closes"),
    [
        (OPENS, "</think>\n\n"),
        (QWEN3, ""),  # the model opens it, or not
        (QWEN3 + "{% if add_generation_prompt %}<think>\n{% endif %}", "\n</think>\n\n"),
        ("{% set enable_thinking = false %}" + QWEN3, ""),
    ],
)
def test_an_answer_stands_behind_an_opened_thought(
    template: str, closes: str, tokenizer: Any, stops: list[int]
) -> None:
    tokenizer.chat_template = template
    assert closed_thought(tokenizer) == closes
    told = {"prompt": [{"role": "user", "content": "1"}]}
    rows = [{**told, "completion": text} for text in ("2", "So 2.\n</think>\n\n2")]
    prompt, other = ([*prompt, *answer] for prompt, answer in zip(*tokenised(tokenizer, stops, rows), strict=True))
    before = rendered(tokenizer, told["prompt"])
    assert tokenizer.decode(prompt) == f"{before}{closes}2<|im_end|>"
    assert tokenizer.decode(other) == f"{before}So 2.\n</think>\n\n2<|im_end|>", "it holds its own thought"


def test_an_answer_ends_once(tokenizer: Any, stops: list[int]) -> None:
    rows = [{"prompt": [{"role": "user", "content": "1"}], "completion": f"2<|im_end|>{rest}"} for rest in ("", " 3")]
    assert [tokenizer.decode(ids) for ids in tokenised(tokenizer, stops, rows).answers] == ["2<|im_end|>"] * 2


def test_a_template_that_ends_no_answer_is_refused(tokenizer: Any, stops: list[int]) -> None:
    assert end_token(tokenizer, stops) == tokenizer.eos_token_id
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    with pytest.raises(ValueError, match="ends an answer with no token that generation stops at"):
        end_token(tokenizer, stops)


def test_rows_that_do_not_fit_are_refused(tokenizer: Any, stops: list[int]) -> None:
    rows = [{"prompt": [{"role": "user", "content": "1 " * n}], "completion": "2"} for n in (1, 50)]
    answers = tokenised(tokenizer, stops, rows)
    longest = max(map(len, answers.prompts))
    answers.refuse_long_prompts(longest + 1)
    answers.refuse_long_prompts(None)
    with pytest.raises(ValueError, match=rf"1 of 2 prompts fill the {longest} tokens .*longest needs {longest + 1}"):
        answers.refuse_long_prompts(longest)
    answers.refuse_long_rows(longest + 2)
    with pytest.raises(ValueError, match=rf"1 of 2 prompts with their answers take more than the {longest + 1} tokens"):
        answers.refuse_long_rows(longest + 1)


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_answer_without_text_is_refused(text: str, tokenizer: Any, stops: list[int]) -> None:
    with pytest.raises(ValueError, match="answer is empty"):
        tokenised(tokenizer, stops, [{"prompt": [{"role": "user", "content": "1"}], "completion": text}])
