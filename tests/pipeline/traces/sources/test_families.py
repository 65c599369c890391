"""What each provider and framework logs, after its published reference: read right, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.traces.sources.chat import completion, parse, prompt, tool_calls

USER = {"role": "user", "content": "Hi"}
ASKED = [USER]
CALL = {"id": "c", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
OTHER = {"id": "d", "type": "function", "function": {"name": "refund", "arguments": "{}"}}
OUTPUT_TEXT = {"type": "output_text", "text": "Yes", "annotations": []}
MESSAGE = {"type": "message", "role": "assistant", "content": [OUTPUT_TEXT], "status": "completed"}
FORMS = [lambda value: value, json.dumps, lambda value: json.dumps(json.dumps(value)), repr]
"""As structure, as JSON in a string, twice so, and as Python prints it."""


def langchain(name: str, content: Any) -> dict[str, Any]:
    return {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", name],
        "kwargs": {"content": content},
    }


PROMPTS: dict[str, Any] = {
    "chat": {"model": "m", "messages": ASKED, "tools": [{"type": "function", "function": {"name": "f"}}]},
    "chat parts": [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}],
    "responses": {"model": "m", "input": "Hi", "temperature": 1, "text": {"format": {"type": "text"}}},
    "responses items": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
    "completions": {"model": "m", "prompt": "Hi", "max_tokens": 5},
    "completions of one": {"model": "m", "prompt": ["Hi"]},
    "otel": [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}],
    "otel part": [{"type": "text", "content": "Hi"}],
    "otel in content": [{"role": "user", "content": '[{"type": "text", "content": "Hi"}]'}],
    "langchain": [{"type": "human", "content": "Hi", "additional_kwargs": {}}],
    "langchain data": [{"type": "human", "data": {"content": "Hi"}}],
    "langchain kwargs": [[langchain("HumanMessage", "Hi")]],
    "langgraph": {"messages": [{"type": "human", "content": "Hi"}]},
    "google": {"model": "gemini", "contents": [{"role": "user", "parts": [{"text": "Hi", "thought": None}]}]},
    "google text": {"model": "gemini", "contents": ["Hi"]},
    "bedrock": {"modelId": "m", "messages": [{"role": "user", "content": [{"text": "Hi"}, {"cachePoint": {}}]}]},
    "strands": [{"role": "user", "content": '[{"text": "Hi"}]'}],
    "llamaindex": {"messages": [{"role": "user", "blocks": [{"block_type": "text", "text": "Hi"}]}]},
    "llamaindex args": {"args": ["Hi"], "kwargs": {"temperature": 0}},
    "livekit": {"items": [{"id": "i", "type": "message", "role": "user", "content": ["Hi"]}]},
    "vercel": {"prompt": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    "autogen": [{"type": "UserMessage", "content": "Hi", "source": "user"}],
    "agent framework": [{"role": "user", "contents": [{"type": "text", "text": "Hi"}]}],
    "an enum's name": [{"role": "MessageRole.USER", "content": "Hi"}],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", PROMPTS.values(), ids=PROMPTS)
def test_a_prompt_is_read_in_every_form(value: Any, form: Any) -> None:
    result = parse(form(value), "user")
    assert (result.messages, result.unreadable) == (ASKED, None)


SYSTEM: dict[str, Any] = {
    "chat": [{"role": "developer", "content": "Be brief."}, USER],
    "responses": {"model": "m", "instructions": "Be brief.", "input": [USER]},
    "anthropic": {"model": "m", "system": "Be brief.", "messages": ASKED},
    "anthropic parts": {"model": "m", "system": [{"type": "text", "text": "Be brief."}], "messages": ASKED},
    "vercel": {"system": "Be brief.", "prompt": "Hi"},
    "google": {"contents": "Hi", "config": {"system_instruction": "Be brief."}},
    "google parts": {"contents": "Hi", "systemInstruction": {"parts": [{"text": "Be brief."}], "role": "user"}},
    "langchain": [{"type": "system", "content": "Be brief."}, {"type": "human", "content": "Hi"}],
}


@pytest.mark.parametrize("value", SYSTEM.values(), ids=SYSTEM)
def test_instructions_are_the_system_message(value: Any) -> None:
    assert parse(value, "user").messages == [{"role": "system", "content": "Be brief."}, USER]


def test_instructions_repeated_by_the_answer_are_in_the_prompt() -> None:
    answered = parse({"object": "response", "instructions": "Be brief.", "output": [MESSAGE]}, "assistant")
    wanted = [{"role": "system", "content": "Be brief."}, USER]
    assert prompt(parse("Hi", "user"), answered) == wanted == prompt(parse(wanted, "user"), answered)


ANSWERS: dict[str, Any] = {
    "chat": {"choices": [{"message": {"role": "assistant", "content": "Yes"}, "finish_reason": "stop"}]},
    "refusal": {"choices": [{"message": {"role": "assistant", "content": None, "refusal": "Yes"}}]},
    "refusal part": {"role": "assistant", "content": [{"type": "refusal", "refusal": "Yes"}]},
    "responses": {"object": "response", "output": [{"type": "reasoning", "summary": []}, MESSAGE]},
    "responses list": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, MESSAGE],
    "completions": {"choices": [{"text": "Yes"}]},
    "anthropic": {"id": "m", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "Yes"}]},
    "anthropic thinking": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Yes"}],
    "claude 2": {"completion": "Yes", "stop_reason": "stop_sequence"},
    "bedrock": {"output": {"message": {"role": "assistant", "content": [{"text": "Yes"}]}}, "stopReason": "end_turn"},
    "bedrock reasoning": {"role": "assistant", "content": [{"reasoningContent": {"text": "hm"}}, {"text": "Yes"}]},
    "otel": [
        {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "Yes"}]}
    ],
    "google": {"candidates": [{"content": {"parts": [{"text": "hm", "thought": True}, {"text": "Yes"}]}}]},
    "adk": {"content": {"parts": [{"text": "Yes"}], "role": "model"}, "finish_reason": "STOP", "partial": False},
    "langchain": {"role": "assistant", "content": "Yes", "additional_kwargs": {"refusal": None}},
    "langchain result": {"generations": [[{"text": "Yes", "message": langchain("AIMessage", "Yes")}]]},
    "langchain result that says so": {
        "generations": [[{"text": "Yes", "type": "ChatGeneration", "message": langchain("AIMessage", "Yes")}]],
        "llm_output": {"token_usage": {"total_tokens": 18}},
        "type": "LLMResult",
    },
    "langgraph": {"messages": [{"type": "human", "content": "Hi"}, {"type": "ai", "content": "Yes"}]},
    "ollama": {"model": "m", "message": {"role": "assistant", "content": "Yes"}, "done": True},
    "vercel": {"text": "Yes", "toolCalls": [], "finishReason": "stop"},
    "dspy": ["Yes"],
    "an assistant's text": {"role": "assistant", "content": [{"type": "text", "text": {"value": "Yes"}}]},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_read_in_every_form(value: Any, form: Any) -> None:
    result = parse(form(value), "assistant")
    assert (completion(result), tool_calls(result), result.unreadable, result.failed) == ("Yes", None, None, False)


CALLING: dict[str, Any] = {
    "chat": {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [CALL, OTHER]}}]},
    "langchain": {"role": "assistant", "content": "", "additional_kwargs": {"tool_calls": [CALL, OTHER]}},
    "responses": [
        {"type": "function_call", "name": "search", "arguments": "{}", "call_id": "c"},
        {"type": "function_call", "name": "refund", "arguments": "{}", "call_id": "d"},
    ],
    "otel": [{"role": "assistant", "parts": [{"type": "tool_call", "name": n, "arguments": {}} for n in "ab"]}],
    "anthropic": {"role": "assistant", "content": [{"type": "tool_use", "name": n, "input": {}} for n in "ab"]},
    "google": {"candidates": [{"content": {"parts": [{"functionCall": {"name": n, "args": {}}} for n in "ab"]}}]},
    "vercel": [{"toolCallType": "function", "toolCallId": n, "toolName": n, "args": '{"q": "x"}'} for n in "ab"],
    "vercel parts": {"role": "assistant", "content": [{"type": "tool-call", "toolName": n, "input": {}} for n in "ab"]},
    "autogen": {"type": "AssistantMessage", "content": [{"id": n, "arguments": "{}", "name": n} for n in "ab"]},
    "bedrock": {"role": "assistant", "content": [{"toolUse": {"name": n, "input": {}}} for n in "ab"]},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", CALLING.values(), ids=CALLING)
def test_an_answer_that_is_calls_has_both_of_them_and_no_text(value: Any, form: Any) -> None:
    result = parse(form(value), "assistant")
    assert (completion(result), result.unreadable) == ("", None)
    assert len(json.loads(tool_calls(result) or "[]")) == 2


def test_a_responses_output_is_one_turn() -> None:
    result = parse([{"type": "web_search_call", "id": "w", "status": "completed"}, MESSAGE, MESSAGE], "assistant")
    assert completion(result) == "YesYes"
    assert [call["type"] for call in json.loads(tool_calls(result) or "[]")] == ["web_search_call"]


def test_results_of_tools_are_messages_of_tools() -> None:
    asked: list[Any] = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "search", "content": "found"},
        {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "a"}]}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "search", "response": {"n": 1}}}]},
        {"type": "function_call_output", "call_id": "c", "output": "b"},
        {"role": "tool", "content": [{"type": "tool-result", "toolName": "search", "result": "c"}]},
    ]  # fmt: skip
    result = parse(asked, "user").messages
    assert [m["role"] for m in result] == ["user", "assistant", *["tool"] * 5]
    assert [m["content"] for m in result[2:]] == ["found", "a", '{"n":1}', "b", "c"]


def test_definitions_of_tools_are_no_messages() -> None:
    defined = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
    for value in (
        [USER, {"role": "tool", "content": defined}],
        [USER, defined],
        {"messages": ASKED, "tools": [defined]},
    ):
        assert parse(value, "user").messages == ASKED


@pytest.mark.parametrize("form", FORMS[:2])
@pytest.mark.parametrize(
    "value",
    [
        {"choices": [], "prompt_filter_results": [{"content_filter_results": {}}]},
        {"choices": [{"finish_reason": "content_filter", "content_filter_results": {"hate": {"filtered": True}}}]},
        {"candidates": [{"finishReason": "SAFETY", "index": 0}]},
        {"error": {"message": "overloaded"}},
        {"object": "response", "status": "failed", "output": [], "error": {"code": "x"}},
    ],
)
def test_an_answer_that_was_filtered_or_failed_is_an_error(value: Any, form: Any) -> None:
    result = parse(form(value), "assistant")
    assert (result.failed, completion(result), result.unreadable) == (True, "", None)


@pytest.mark.parametrize("text", ["None", " null ", "undefined"])
def test_a_text_for_nothing_is_no_answer(text: str) -> None:
    assert parse(text, "assistant").messages == []
    assert completion(parse({"role": "assistant", "content": text}, "assistant")) == ""


UNKNOWN: dict[str, Any] = {
    "the middle of a text": {"model": "m", "prompt": "a = ", "suffix": " + 1"},
    "an answer that repeats the prompt": {"model": "m", "prompt": "Hi", "echo": True},
    "a compacted conversation": [USER, {"type": "compaction", "encrypted_content": "x"}, USER],
    "a compacted message": [{"role": "user", "parts": [{"type": "compaction", "content": "They said hi."}]}],
    "an unknown item": [MESSAGE, {"type": "novel_thing", "payload": "secret"}],
    "an unknown part": {"role": "assistant", "content": [{"type": "hologram", "beam": "secret"}]},
    "an unknown role": {"role": "wizard", "content": "secret"},
    "a batch": {"model": "m", "prompt": ["secret", "two"]},
    "a prompt beside its history": {"input": "secret", "chat_history": [USER]},
    "a conversation of the server's": {"model": "m", "input": "secret", "previous_response_id": "r"},
    "a piece of a stream": {"choices": [{"delta": {"content": "secret"}}]},
    "a number": 3,
    "a structure with a chat's key": {"result": {"answer": "secret"}},
    "a user's call": {"role": "user", "content": "secret", "tool_calls": [CALL]},
    "base64": {"type": "novel_blob", "content": "secret"},
}


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("form", [*FORMS[:2], repr])
@pytest.mark.parametrize("value", UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_shape_is_unreadable_with_its_fingerprint(value: Any, form: Any, role: str) -> None:
    if value == 3 and form is not FORMS[0]:
        return  # the text 3 is a text
    result = parse(form(value), role)
    assert result.messages == [] and result.unreadable
    assert "secret" not in result.unreadable and len(result.unreadable) < 220


@pytest.mark.parametrize(
    "text",
    [
        "ChatCompletionMessage(content='secret', role='assistant', tool_calls=None)",
        "[HumanMessage(content='secret')]",
        "content='secret' additional_kwargs={} response_metadata={}",
        "role='assistant' content='secret'",
        "<generator object f at 0x7f0000000000>",
        "[object Object]",
        "{'city': set()}",
        '[{"role": "assistant", "content": "secre',
        "{'role': 'assistant', 'content': b'secret'}",
    ],
)
def test_what_a_program_prints_is_nobodys_words(text: str) -> None:
    for value in (text, {"role": "assistant", "content": text}):
        result = parse(value, "assistant")
        assert result.messages == [] and result.unreadable and "secret" not in result.unreadable


@pytest.mark.parametrize(
    "text",
    [
        "[" * 500 + "'secret'" + "]" * 500,
        "{'a': " * 100 + "1" + "}" * 100 + " " * 70_000 + "{",
        "['secret', 'two']",
        "{'city': 'secret'}",
        '{"role": "assistant", "content": "secr',
        '{"city": True}',
    ],
)
def test_a_python_literal_is_read_or_unreadable_and_never_text(text: str) -> None:
    result = parse(text, "assistant")
    assert result.messages == [] and result.unreadable and "secret" not in result.unreadable


def test_an_answer_that_should_have_been_json_is_the_text_it_is() -> None:
    for text in ('{"city": "Oslo"', '{"city": {"name": "Oslo"}}', '[{"city": "Oslo"}, {}]'):
        assert completion(parse(text, "assistant")) == text
        assert completion(parse({"role": "assistant", "content": text}, "assistant")) == text


def test_a_fingerprint_names_keys_and_types() -> None:
    result = parse({"kind": "x", "a@b.example": 1, "steps": [{"thought": "x"}, {"thought": "y"}]}, "user")
    assert result.unreadable == "input: {kind:str,?:int,steps:[{thought:str}]}"
