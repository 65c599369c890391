"""What holds of the messages of any value; `cases/messages.json` has the values that are known."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.traces.sources.chat import completion, parse, prompt, tool_calls, tools
from pipeline.traces.sources.envelopes import is_data

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
USER = {"role": "user", "content": "Hi"}


def test_instructions_repeated_by_the_answer_are_in_the_prompt() -> None:
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes"}]}]
    answered = parse({"object": "response", "instructions": "Be brief.", "output": output}, "assistant")
    wanted = [{"role": "system", "content": "Be brief."}, USER]
    assert prompt(parse("Hi", "user"), answered) == wanted == prompt(parse(wanted, "user"), answered)


def test_calls_on_the_way_to_an_answer_are_of_its_prompt() -> None:
    way = [{"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "2"}]
    for before in ([], [USER]):
        answered = parse([*before, *way, {"role": "assistant", "content": "Two."}], "assistant")
        assert (completion(answered), tool_calls(answered)) == ("Two.", None)
        asked = prompt(parse([USER], "user"), answered)
        assert [message["role"] for message in asked] == ["user", "assistant", "tool"]


def test_a_tool_that_was_offered_twice_is_written_once() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    asked = parse({"messages": [USER], "tools": [tool, tool]}, "user")
    assert tools(asked) == json.dumps([tool], separators=(",", ":"))


@pytest.mark.parametrize(
    "text",
    ["[" * 500 + "'secret'" + "]" * 500, "{'a': " * 100 + "1" + "}" * 100 + " " * 70_000 + "{"],
    ids=["deep", "long"],
)
def test_a_literal_without_end_is_unreadable_and_never_text(text: str) -> None:
    result = parse(text, "assistant")
    assert result.messages == [] and result.unreadable and "secret" not in result.unreadable


KEYS = ["role", "content", "messages", "type", "text", "parts", "output", "input", "args", "tool_calls", "choices", "x"]
WORDS = ["user", "assistant", "tool", "text", "message", "function_call", "reasoning", "human", "odd"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, min_size=1, max_size=3),
    max_leaves=8,
)


def structures(value: Any) -> Iterator[Any]:
    """Every object, and every list that is not empty, of a value."""
    if isinstance(value, (dict, list)) and value:
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from structures(inner)


def texts(value: Any) -> str:
    """Every text of a value, and every key, as one."""
    if isinstance(value, dict):
        return "\n".join([*value, *map(texts, value.values())])
    return "\n".join(map(texts, value)) if isinstance(value, list) else value if isinstance(value, str) else ""


@pytest.mark.slow
@settings(max_examples=100)
@given(JSON, st.sampled_from(["user", "assistant"]), st.sampled_from([lambda v: v, json.dumps, repr]))
def test_chat_value_is_messages_or_a_reason(value: Any, role: str, form: Any) -> None:
    result = parse(form(value), role)
    assert not (result.messages and result.unreadable)
    lines = [m["content"] for m in result.messages if m["role"] != "tool"]  # a tool's result may be JSON
    assert all(isinstance(text, str) for message in result.messages for text in message.values())
    if form(value) == json.dumps(value) and lines == [json.dumps(value)] and role == "assistant" and is_data(value):
        return  # a model was asked for JSON: it has no key of a chat
    for structure in structures(value):
        forms = {json.dumps(structure), json.dumps(structure, separators=(",", ":")), repr(structure), str(structure)}
        for written in forms:
            assert written in texts(value) or not any(written in text for text in lines)
