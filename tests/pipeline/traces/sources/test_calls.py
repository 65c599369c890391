from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.traces.sources import chat
from pipeline.traces.sources.calls import normal_calls, normal_tools
from pipeline.traces.sources.shapes import Unreadable

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}


@pytest.mark.parametrize(
    "call",
    [
        CALL,
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},  # Ollama
        {"id": "fc", "call_id": "c", "type": "function_call", "name": "f", "arguments": '{"a":1}'},  # responses
        {"id": "c", "type": "tool_use", "name": "f", "input": {"a": 1}},  # Anthropic
        {"toolUse": {"toolUseId": "c", "name": "f", "input": {"a": 1}}},  # Bedrock
        {"functionCall": {"id": "c", "name": "f", "args": {"a": 1}}},  # Google
        {"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}},  # OpenTelemetry
        {"name": "f", "args": {"a": 1}, "id": "c", "type": "tool_call"},  # LangChain
        {"type": "tool-call", "toolCallId": "c", "toolName": "f", "args": {"a": 1}},  # AI SDK 4
        {"type": "tool-call", "toolCallId": "c", "toolName": "f", "input": {"a": 1}},  # AI SDK 5
        {"tool_id": "c", "tool_name": "f", "tool_kwargs": {"a": 1}},  # LlamaIndex
        {"id": "c", "type": "custom", "custom": {"name": "f", "input": '{"a":1}'}},
    ],
)
def test_a_call_of_each_provider_has_one_form(call: dict[str, Any]) -> None:
    assert normal_calls([call]) == [CALL]


@pytest.mark.parametrize(
    ("call", "kind", "name"),
    [
        ({"type": "web_search_call", "id": "w", "action": {"query": "x"}}, "web_search_call", "web_search"),
        ({"type": "server_tool_use", "id": "w", "name": "bash", "input": {"c": "x"}}, "server_tool_use", "bash"),
        ({"executable_code": {"code": "1"}}, "executable_code", "executable_code"),
    ],
)
def test_a_call_that_the_provider_executes_keeps_its_kind(call: dict[str, Any], kind: str, name: str) -> None:
    (normal,) = normal_calls([call])
    assert (normal["type"], normal["function"]["name"]) == (kind, name)
    assert isinstance(json.loads(normal["function"]["arguments"]), dict)


@pytest.mark.parametrize(("arguments", "kept"), [(None, "{}"), ("", "{}"), ("{broken", "{broken"), ('{ "a": 1}', None)])
def test_arguments_stay_as_the_model_wrote_them(arguments: Any, kept: str | None) -> None:
    (call,) = normal_calls([{"function": {"name": "f", "arguments": arguments}}])
    assert call["function"]["arguments"] == (arguments if kept is None else kept)


@pytest.mark.parametrize("call", [7, {"arguments": "{}"}, {"type": "function", "function": {"arguments": "{}"}}])
def test_a_call_without_a_name_is_unreadable(call: Any) -> None:
    with pytest.raises(Unreadable):
        normal_calls([call])
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert chat.parse([message], "assistant").unreadable


@pytest.mark.parametrize(
    "definitions",
    [
        [TOOL],
        json.dumps([TOOL]),
        [json.dumps(TOOL)],
        [{"type": "function", "name": "f", "description": "d", "parameters": SCHEMA}],  # responses, OpenTelemetry
        [{"name": "f", "description": "d", "input_schema": SCHEMA}],  # Anthropic
        [{"function_declarations": [{"name": "f", "description": "d", "parameters": SCHEMA}]}],  # Google
        {"tools": [{"toolSpec": {"name": "f", "description": "d", "inputSchema": {"json": SCHEMA}}}]},  # Bedrock
        {"f": {"description": "d", "inputSchema": SCHEMA}},  # AI SDK
    ],
)
def test_a_definition_of_each_provider_has_one_form(definitions: Any) -> None:
    assert normal_tools(definitions) == [TOOL]


def test_a_providers_own_tool_stays_as_it_is() -> None:
    assert normal_tools([{"type": "web_search"}, TOOL]) == [{"type": "web_search"}, TOOL]
    assert normal_tools(7) == normal_tools(None) == []


def test_a_request_has_its_tools_and_results_their_call() -> None:
    asked = chat.parse(
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c", "name": "f", "id": "m", "content": "2"},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "3"}]},
            ],
            "tools": [TOOL, TOOL],
        },
        "user",
    )
    assert chat.tools(asked) == json.dumps([TOOL], separators=(",", ":"))
    assert asked.messages[2:] == [
        {"role": "tool", "content": "2", "tool_call_id": "c", "name": "f"},
        {"role": "tool", "content": "3", "tool_call_id": "c"},
    ]


def test_calls_on_the_way_to_an_answer_are_of_its_prompt() -> None:
    asked = chat.parse([{"role": "user", "content": "Hi"}], "user")
    way = [{"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "2"}]
    for before in ([], [{"role": "user", "content": "Hi"}]):
        answered = chat.parse([*before, *way, {"role": "assistant", "content": "Two."}], "assistant")
        assert (chat.completion(answered), chat.tool_calls(answered)) == ("Two.", None)
        assert [message["role"] for message in chat.prompt(asked, answered)] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("arguments", [json.dumps('{"a":1}'), "{'a': 1}"], ids=["json twice", "python"])
def test_arguments_that_were_written_over_are_unwrapped(arguments: str) -> None:
    assert normal_calls([{"id": "c", "name": "f", "arguments": arguments}]) == [CALL]


@pytest.mark.parametrize(
    ("output", "content"), [({"type": "text", "value": "r"}, "r"), ({"type": "json", "value": [1]}, "[1]")]
)
def test_what_a_tool_returned_is_unwrapped(output: Any, content: str) -> None:
    part = {"type": "tool-result", "toolCallId": "c", "toolName": "f", "output": output}
    (result,) = chat.parse([{"role": "tool", "content": [part]}], "user").messages
    assert result == {"role": "tool", "content": content, "tool_call_id": "c", "name": "f"}
