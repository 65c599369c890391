"""Requests as clients of the three APIs send them."""

import json
from typing import Any

import pytest

from pipeline.core.apis import CHAT, MESSAGES, RESPONSES, Api
from pipeline.serving.chat_request import DEFAULTS, ChatRequest, read_request
from pipeline.serving.loaded import RequestRefused

USER = {"role": "user", "content": "Why?"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}


def read(api: Api = CHAT, **fields: Any) -> ChatRequest:
    return read_request(api, json.dumps({"model": "m", api.conversation: [USER], **fields}).encode())


@pytest.mark.parametrize(
    ("message", "read_as"),
    [
        ({"role": "developer", "content": "Briefly."}, {"role": "system", "content": "Briefly."}),
        (
            {"role": "user", "content": [{"type": "text", "text": "Wh"}, {"type": "text", "text": "y?"}], "name": None},
            USER,
        ),
        ({**USER, "name": "ada"}, {**USER, "name": "ada"}),
        (
            {"role": "assistant", "content": "So.", "refusal": None, "annotations": [], "audio": None,
             "function_call": None, "tool_calls": None, "reasoning_content": "Hm."},
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
    for n in range(max(map(len, DEFAULTS.values()))):
        defaults = {name: values[min(n, len(values) - 1)] for name, values in DEFAULTS.items()}
        assert read(**defaults, **described, **nulls) == read()


def test_stop_and_tool_choice_are_honoured() -> None:
    assert (read(stop="a").stop, read(stop=["a", "b"]).stop) == (["a"], ["a", "b"])
    assert read(MESSAGES, stop_sequences=["a"]).stop == ["a"]
    assert (
        read(RESPONSES, max_output_tokens=5).max_completion_tokens
        == read(max_completion_tokens=5).max_completion_tokens
    )
    assert [m["role"] for m in read(tools=[TOOL]).conversation] == ["tools", "user"]
    assert read(tools=[TOOL], tool_choice="none").conversation == [USER]
    assert read(MESSAGES, tools=[{"name": "f", "input_schema": {}}], tool_choice={"type": "none"}).conversation == [
        USER
    ]
    assert not read(MESSAGES, tool_choice={"type": "auto", "disable_parallel_tool_use": True}).parallel_tool_calls


@pytest.mark.parametrize(
    ("api", "fields", "words"),
    [
        (CHAT, {"n": 2}, "n: this server does not go by it other than 1"),
        (CHAT, {"logprobs": True}, "logprobs:"),
        (CHAT, {"response_format": {"type": "json_schema"}}, "response_format:"),
        (CHAT, {"presence_penalty": 0.5}, "presence_penalty:"),
        (CHAT, {"logit_bias": {"5": 1}}, "logit_bias:"),
        (CHAT, {"top_k": 3}, "top_k: this server does not go by it. Leave it out"),
        (CHAT, {"tool_choice": "required"}, "tool_choice:"),
        (CHAT, {"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice:"),
        (CHAT, {"stop": [""]}, "stop:"),
        (CHAT, {"top_p": 0}, "top_p:"),
        (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages.role: 'robot'"),
        (CHAT, {"messages": [{**USER, "refusal": "no"}]}, "messages.refusal:"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "a part of type 'image_url'"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages: a part of type"),
        (CHAT, {"messages": 5}, "the body is no request"),
        (CHAT, {"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools: one of type 'custom'"),
        (RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id:"),
        (RESPONSES, {"conversation": "conv_1"}, "conversation:"),
        (RESPONSES, {"store": True}, "store: this server keeps no response"),
        (RESPONSES, {"max_output_tokens": 0}, "max_output_tokens:"),
        (RESPONSES, {"reasoning": {"effort": "high"}}, "reasoning:"),
        (RESPONSES, {"text": {"format": {"type": "json_schema"}}}, "text: this server does not go by it other than {}"),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools: one of type 'web_search'"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "i"}]}, "input: a part of type 'item_reference'"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking:"),
        (MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice:"),
        (MESSAGES, {"stop_sequences": [""]}, "stop_sequences:"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "a part of type 'image'"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(api: Api, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        read(api, **fields)
    assert words in str(refused.value)
