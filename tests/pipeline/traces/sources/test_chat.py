from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.traces.sources.chat import completion, parse
from pipeline.traces.sources.envelopes import is_data

ASKED = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "value",
    [
        "Hi",
        '"Hi"',
        ASKED,
        json.dumps(ASKED),
        json.dumps(json.dumps(ASKED)),
        {"messages": ASKED},
        {"messages": [{"type": "human", "content": "Hi"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        {"model": "gemini", "contents": "Hi"},
        {"contents": [{"role": "user", "parts": [{"text": "H"}, {"text": "i"}]}]},
        {"args": ["Hi"], "kwargs": {}},
    ],
)
def test_inputs(value: Any) -> None:
    assert parse(value, "user").messages == ASKED


@pytest.mark.parametrize(
    "value",
    [
        "Yes",
        {"role": "assistant", "content": "Yes"},
        {"choices": [{"message": {"role": "assistant", "content": "Yes"}, "finish_reason": "stop"}, {"message": "No"}]},
        {"choices": [{"text": "Yes"}]},
        {"candidates": [{"content": {"parts": [{"text": "Yes"}], "role": "model"}}]},
        {"output": [{"type": "reasoning"}, {"role": "assistant", "content": [{"type": "output_text", "text": "Yes"}]}]},
        {"messages": [{"type": "human", "content": "Hi"}, {"type": "ai", "content": "Yes"}]},
    ],
)
def test_outputs(value: Any) -> None:
    assert completion(parse(value, "assistant")) == "Yes"


@pytest.mark.parametrize("value", [None, "", [], {"messages": []}])
def test_nothing(value: Any) -> None:
    assert parse(value, "user").messages == []


TEXTS = ['{"answer": 3}', "[1, 2]", '{"broken', "42", "[not json]", '{"a": 1} is JSON, is it?', "<b>x</b>", "f(x=1)"]


@pytest.mark.parametrize("text", TEXTS)
def test_json_of_no_known_shape_is_the_text_it_was(text: str) -> None:
    assert parse(text, "assistant").messages == [{"role": "assistant", "content": text}]


def test_tool_calls_stay_with_their_message() -> None:
    call = {"id": "c", "function": {"name": "search", "arguments": "{}"}}
    for message in ({"tool_calls": [call]}, {"additional_kwargs": {"tool_calls": [call]}}):
        result = parse([{"role": "assistant", "content": None, **message}], "user").messages
        calls = json.dumps([{"id": "c", "type": "function", **call}], separators=(",", ":"))
        assert result == [{"role": "assistant", "content": "", "tool_calls": calls}]
    returned = parse([{"role": "tool", "content": [{"url": "x"}]}], "user").messages
    assert returned == [{"role": "tool", "content": '[{"url":"x"}]'}]


@pytest.mark.parametrize(
    "part",
    [{"type": "image_url", "image_url": {"url": "x"}}, {"inline_data": {"data": "aGk="}}, {"type": "input_audio"}],
)
def test_a_part_that_is_not_text_is_reported(part: dict[str, Any]) -> None:
    assert parse([{"role": "user", "content": [{"type": "text", "text": "See"}, part]}], "user").has_payload


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "function_call": {"name": "search"}},
        {"content": [{"type": "tool_use", "name": "search"}]},
        {"parts": [{"functionCall": {"name": "search"}}]},
    ],
)
def test_tool_calls_in_the_words_of_other_providers_are_kept(message: dict[str, Any]) -> None:
    (result,) = parse([{"role": "assistant", **message}], "user").messages
    call = {"type": "function", "function": {"name": "search", "arguments": "{}"}}
    assert (result["content"], json.loads(result["tool_calls"])) == ("", [call])


def test_a_finish_reason_that_is_not_there_yet_is_none() -> None:
    assert parse({"choices": [{"text": "Yes", "finish_reason": None}]}, "assistant").finish_reason is None


def test_the_finish_reason_is_found_where_the_provider_put_it() -> None:
    assert parse({"choices": [{"text": "Yes", "finish_reason": "length"}]}, "assistant").finish_reason == "length"


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
@settings(max_examples=200)
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
