"""Requests as OpenAI's clients, LangChain and LiteLLM send them."""

import json
from typing import Any

import pytest

from pipeline.serving.chat_request import DEFAULTS, ChatRequest, read_request
from pipeline.serving.loaded import RequestRefused

USER = {"role": "user", "content": "Why?"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def read(**fields: Any) -> ChatRequest:
    return read_request(json.dumps({"model": "m", "messages": [USER], **fields}).encode())


@pytest.mark.parametrize(
    ("message", "read_as"),
    [
        ({"role": "developer", "content": "Briefly."}, {"role": "system", "content": "Briefly."}),
        (
            {"role": "user", "content": [{"type": "text", "text": "Wh"}, {"type": "text", "text": "y?"}], "name": None},
            USER,
        ),
        (
            {"role": "assistant", "content": "So.", "refusal": None, "annotations": [], "audio": None,
             "function_call": None, "tool_calls": None},
            {"role": "assistant", "content": "So."},
        ),
    ],
)  # fmt: skip
def test_messages_are_read_as_clients_send_them(message: Any, read_as: Any) -> None:
    assert read(messages=[USER, message]).conversation == [USER, read_as]


def test_an_answer_of_calls_alone_has_no_content() -> None:
    asked = read(messages=[USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}])
    assert asked.conversation[1]["content"] == "" and "tool_calls" in asked.conversation[1]


def test_null_default_and_describing_fields_change_nothing() -> None:
    described = {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k"}
    nulls = dict.fromkeys(("tools", "stop", "seed", "temperature", "top_p", "stream", "max_tokens", "audio", "stream"))
    assert read(**DEFAULTS, **described, **nulls) == read()


def test_stop_and_tool_choice_are_honoured() -> None:
    assert (read(stop="a").stop, read(stop=["a", "b"]).stop) == (["a"], ["a", "b"])
    tool = {"type": "function", "function": {"name": "f"}}
    assert [m["role"] for m in read(tools=[tool]).conversation] == ["tools", "user"]
    assert read(tools=[tool], tool_choice="none").conversation == [USER]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 2}, "n: this server does not go by it other than 1"),
        ({"logprobs": True}, "logprobs:"),
        ({"response_format": {"type": "json_object"}}, "response_format:"),
        ({"presence_penalty": 0.5}, "presence_penalty:"),
        ({"logit_bias": {"5": 1}}, "logit_bias:"),
        ({"top_k": 3}, "top_k: this server does not go by it. Leave it out"),
        ({"tool_choice": "required"}, "tool_choice:"),
        ({"stop": [""]}, "stop.0:"),
        ({"top_p": 0}, "top_p:"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role:"),
        ({"messages": [{**USER, "refusal": "no"}]}, "messages.0.refusal:"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "a part of type 'image_url'"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "the body is no request"),
        ({"messages": 5}, "the body is no request"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        read(**fields)
    assert words in str(refused.value)
