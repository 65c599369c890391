"""What instrumentations of OpenTelemetry were captured to write (traceloop 0.62, OpenInference 0.1 to 4, logfire 5.2,
Vercel's AI SDK 6): read right, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.traces.sources.chat import completion, parse, tool_calls
from pipeline.traces.sources.choices import served

from .conftest import reasons
from .test_otel import one, pairs, request, rows_of, span

ASKED = [{"role": "user", "parts": [{"type": "text", "content": "Where is K92?"}]}]
USER = {"role": "user", "content": "Where is K92?"}
CALL = {"id": "c", "type": "function", "function": {"name": "get_order", "arguments": '{"id":"K92"}'}}
CALL_PART = {"type": "tool_call", "id": "c", "name": "get_order", "arguments": {"id": "K92"}}


def answer(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "parts": list(parts), **fields}


def text(content: str) -> dict[str, str]:
    return {"type": "text", "content": content}


def names(calls: str | None) -> list[str]:
    return [call["function"]["name"] for call in json.loads(calls or "[]")]


def test_token_counts_that_cohere_writes_as_fractions_are_whole(tmp_path: Path) -> None:
    """traceloop's `cohere` 0.62 on Cohere 5."""
    fields = {
        "gen_ai.request.model": "command",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "Where is K92?",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": json.dumps([{"type": "text", "text": "Soon."}]),
        "gen_ai.usage.prompt_tokens": 11.0,
        "gen_ai.usage.completion_tokens": 7.0,
    }
    trace = one(tmp_path, request(span(fields)))
    assert (trace.messages, trace.completion) == ([USER], "Soon.")
    assert (trace.input_tokens, trace.output_tokens) == (11, 7)


def test_of_several_choices_the_first_was_served() -> None:
    choices = [answer(text("Soon."), finish_reason="stop"), answer(text("Never."), finish_reason="stop")]
    assert completion(served(choices)) == "Soon."


def test_the_pieces_of_a_turn_are_one_answer() -> None:
    result = served([answer(text("Let me look.")), answer(CALL_PART), answer({**CALL_PART, "id": "d"})])
    assert (completion(result), names(tool_calls(result))) == ("Let me look.", ["get_order", "get_order"])
    ended = served([answer(text("Let me look."), finish_reason="tool_calls"), answer(CALL_PART)])
    assert (completion(ended), names(tool_calls(ended))) == ("Let me look.", ["get_order"])


def test_several_answers_without_an_end_are_unreadable() -> None:
    assert served([answer(text("Soon.")), answer(text("Never."))]).unreadable == "output: several answers"


def test_chunks_of_a_stream_are_one_answer() -> None:
    def chunks(*texts: str) -> list[dict[str, Any]]:
        *before, last = texts
        return [*(answer(text(t), finish_reason="") for t in before), answer(text(last), finish_reason="stop")]

    assert completion(served(chunks("So", "on", "."))) == "Soon."
    assert completion(served(chunks("So", "on.", "Soon."))) == "Soon."  # the last one repeats the others
    part = {**CALL_PART, "arguments": None}
    calls = [answer(part, finish_reason=""), answer(CALL_PART, finish_reason="stop")]
    [call] = json.loads(tool_calls(served(calls)) or "[]")
    assert json.loads(call["function"]["arguments"]) == {"id": "K92"}


def test_instructions_that_are_a_message_too_are_written_once(tmp_path: Path) -> None:
    messages = [{"role": "system", "parts": [text("Be brief.")]}, *ASKED]
    fields = {"gen_ai.system_instructions": [text("Be brief.")], "gen_ai.input.messages": messages}
    trace = one(tmp_path, request(span({**fields, "gen_ai.output.messages": [answer(text("Soon."))]})))
    assert trace.messages == [{"role": "system", "content": "Be brief."}, USER]


def test_the_response_decides_between_several_output_messages(tmp_path: Path) -> None:
    choices = [{"index": n, "message": {"role": "assistant", "content": t}} for n, t in enumerate(("Soon.", "Never."))]
    trace = one(
        tmp_path,
        request(
            span(
                {
                    "input.value": "Where is K92?",
                    "llm.output_messages.0.message.role": "assistant",
                    "llm.output_messages.0.message.content": "Soon.",
                    "llm.output_messages.1.message.role": "assistant",
                    "llm.output_messages.1.message.content": "Never.",
                    "output.value": json.dumps({"object": "chat.completion", "choices": choices}),
                }
            )
        ),
    )
    assert trace.completion == "Soon."


@pytest.mark.parametrize("where", ["message", "additional_kwargs"])
def test_a_refusal_is_taken_from_the_response(tmp_path: Path, where: str) -> None:
    refusal: dict[str, Any] = {"refusal": "I can't."}
    message = {"role": "assistant", "content": None, **(refusal if where == "message" else {where: refusal})}
    fields = {
        "input.value": "Where is K92?",
        "llm.output_messages.0.message.role": "assistant",
        "output.value": json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}),
    }
    assert one(tmp_path, request(span(fields))).completion == "I can't."


def test_a_prompt_with_a_message_left_out_is_unreadable(tmp_path: Path) -> None:
    numbered = {
        f"llm.input_messages.{n}.message.{field}": value
        for n, role, content in ((0, "user", "Hi"), (2, "tool", "shipped"))
        for field, value in (("role", role), ("content", content))
    }
    trace = one(tmp_path, request(span({**numbered, "output.value": "Soon."})))
    assert trace.unreadable == "input: a number is missing"


@pytest.mark.parametrize("last", [{"role": "tool"}, {"role": "tool", "content": "shipped"}])
def test_a_result_without_its_call_is_unreadable(tmp_path: Path, last: dict[str, str]) -> None:
    lost = [("user", "Where is K92?"), ("assistant", None)]
    fields = {f"llm.input_messages.{n}.message.role": role for n, (role, _) in enumerate(lost)}
    fields |= {"llm.input_messages.0.message.content": "Where is K92?"}
    fields |= {f"llm.input_messages.2.message.{key}": value for key, value in last.items()}
    assert one(tmp_path, request(span({**fields, "output.value": "Soon."}))).unreadable
    events = [{"event.name": "gen_ai.user.message", "content": "Hi"}, {"event.name": "gen_ai.tool.message", **last}]
    events.append({"event.name": "gen_ai.choice", "message": {"role": "assistant", "content": "Soon."}})
    assert one(tmp_path, request(span({"events": events}))).unreadable


def test_results_of_several_calls_may_be_fields_of_one_message(tmp_path: Path) -> None:
    calls = "llm.input_messages.1.message.tool_calls"
    fields = {
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "Where is K92?",
        "llm.input_messages.1.message.role": "assistant",
        **{
            f"{calls}.{n}.tool_call.{key}": value
            for n in (0, 1)
            for key, value in (("id", f"{n}"), ("function.name", "f"))
        },
        "llm.input_messages.2.message.role": "function",
        **{f"llm.input_messages.2.function.{n}": json.dumps({"content": "r", "call_id": f"{n}"}) for n in (0, 1)},
        "output.value": "Soon.",
    }
    trace = one(tmp_path, request(span(fields)))
    assert trace.messages[2:] == [{"role": "tool", "content": "r", "tool_call_id": f"{n}"} for n in (0, 1)]


@pytest.mark.parametrize(
    "value",
    ['{"replies": ["ChatMessage(_role=\'assistant\')"]}', "assistant: None", "[null]"],
)
def test_what_an_object_prints_is_no_answer(tmp_path: Path, value: str) -> None:
    fields = {
        "input.value": "Where is K92?",
        "llm.output_messages.0.message.role": "assistant",
        "output.value": value,
        "output.mime_type": "application/json",
    }
    assert one(tmp_path, request(span(fields))).completion == ""


def test_reasoning_in_parts_of_text_is_left_out(tmp_path: Path) -> None:
    part = "llm.output_messages.0.message.contents.{}.message_content.{}"
    parts = {
        part.format(n, key): value
        for n, t in enumerate(("Soon.", "hm"))
        for key, value in (("type", "text"), ("text", t))
    }
    response = {"role": "assistant", "content": "Soon.", "tool_calls": None, "raw": "ChatCompletion(id='c')"}
    fields = {"input.value": "Hi", "llm.output_messages.0.message.role": "assistant", **parts}
    trace = one(tmp_path, request(span({**fields, "output.value": json.dumps(response)})))
    assert (trace.completion, trace.unreadable) == ("Soon.", None)


def test_a_call_that_langfuse_wrote_is_read(tmp_path: Path) -> None:
    definition = {"type": "function", "function": {"name": "get_order", "parameters": {"type": "object"}}}
    fields = {
        "langfuse.observation.type": "generation",
        "langfuse.observation.model.name": "m",
        "langfuse.observation.input": json.dumps({"messages": [USER], "tools": [definition]}),
        "langfuse.observation.output": json.dumps({"role": "assistant", "content": "Soon."}),
        "langfuse.observation.usage_details": '{"prompt_tokens": 7, "completion_tokens": 2}',
        "langfuse.trace.metadata.user_consent": "true",
        "langfuse.environment": "production",
        "langfuse.release": "v7",
        "langfuse.trace.tags": ["desk"],
        "user.id": "u",
    }
    trace = one(tmp_path, request(span(fields, attributes=pairs(fields)), **{"service.version": "1.4"}))
    assert (trace.messages, trace.completion, trace.model, trace.user_id) == ([USER], "Soon.", "m", "u")
    assert (trace.input_tokens, trace.output_tokens, json.loads(trace.tools or "")) == (7, 2, [definition])
    marks = {"release": "v7", "environment": "production", "tags": ["desk"], "user_consent": "true"}
    assert marks.items() <= json.loads(trace.metadata).items()
    chain = {**fields, "langfuse.observation.type": "chain"}
    rows = rows_of(tmp_path / "chain", request(span(chain, attributes=pairs(chain))))
    assert reasons(rows) == ["not_generation:1:2026-01-05"]


@pytest.mark.parametrize(
    "fields",
    [
        {"ai.telemetry.metadata.user_consent": "true", "ai.telemetry.metadata.userId": "u"},
        {
            "traceloop.association.properties.user_consent": "true",
            "traceloop.association.properties.user_id": "u",
        },
        {"metadata": '{"user_consent": "true"}', "user.id": "u"},
    ],
)
def test_what_an_application_said_is_metadata(tmp_path: Path, fields: dict[str, Any]) -> None:
    resource = {"service.version": "1.4", "deployment.environment.name": "production"}
    trace = one(tmp_path, request(span({"input.value": "Hi", "output.value": "Soon.", **fields}), **resource))
    metadata = json.loads(trace.metadata)
    assert (metadata["user_consent"], trace.user_id) == ("true", "u")
    assert (metadata["release"], metadata["environment"]) == ("1.4", "production")


def test_a_prompt_may_begin_after_absent_instructions(tmp_path: Path) -> None:
    fields = {"llm.input_messages.1.message.role": "user", "llm.input_messages.1.message.content": "Where is K92?"}
    assert one(tmp_path, request(span({**fields, "output.value": "Soon."}))).messages == [USER]


def test_without_a_choice_the_last_assistant_event_answers(tmp_path: Path) -> None:
    events = [
        {"event.name": "gen_ai.user.message", "role": "user", "content": "Where is K92?"},
        {"event.name": "gen_ai.assistant.message", "role": "assistant", "tool_calls": [CALL]},
        {"event.name": "gen_ai.tool.message", "role": "tool", "id": "c", "content": "shipped"},
        {"event.name": "gen_ai.assistant.message", "role": "assistant", "content": "Soon."},
    ]
    trace = one(tmp_path, request(span({"events": json.dumps(events)})))
    assert [message["role"] for message in trace.messages] == ["user", "assistant", "tool"]
    assert trace.messages[2]["tool_call_id"] == "c"
    assert trace.completion == "Soon."


BLOCKS = {
    "a call": ({"type": "function_call", "name": "get_order", "arguments": "{}", "call_id": "c"}, ""),
    "a refusal": ({"type": "refusal", "refusal": "I can't."}, "I can't."),
    "reasoning": ({"reasoningContent": {"reasoningText": {"text": "hm"}}}, ""),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_in_a_part_of_text_is_no_text(name: str) -> None:
    block, wanted = BLOCKS[name]
    result = served([answer(text(json.dumps(block)), CALL_PART)])
    assert (completion(result), names(tool_calls(result))) == (wanted, ["get_order"])


def test_an_answer_in_json_stays_a_part_of_text() -> None:
    for words in ('{"status": "late"}', '{"type": "novel", "n": 1}', "[1, 2]"):
        assert completion(served([answer(text(words))])) == words


def test_a_role_that_is_not_known_answers_in_an_output() -> None:
    unknown = {"role": "unknown", "parts": [text("Soon.")], "finish_reason": "stop"}
    assert completion(served([unknown])) == "Soon."
    calling = {"role": "unknown", "parts": [CALL_PART]}
    assert [message["role"] for message in parse([*ASKED, calling], "user").messages] == ["user", "assistant"]
    assert parse([*ASKED, unknown], "user").unreadable


@pytest.mark.parametrize("response", ['[{"json": {"n": 1}}]', [{"json": {"n": 1}}]])
def test_a_block_of_json_is_the_value_in_it(response: Any) -> None:
    part = {"type": "tool_call_response", "id": "c", "response": response}
    assert parse([{"role": "user", "parts": [part]}], "user").messages[0]["content"] == '{"n":1}'


def test_words_after_json_are_a_text() -> None:
    words = '[{"type": "text", "text": "x"}, 1] what is this?'
    assert parse([{"role": "user", "content": words}], "user").messages == [{"role": "user", "content": words}]


@pytest.mark.parametrize(
    "fields",
    [
        {"gen_ai.tool.definitions": '[{"type": "function", "name": "f", "parameters": {"type": "object"}}]'},
        {"llm.tools.0.tool.json_schema": '{"name": "f", "input_schema": {"type": "object"}}'},
        {"llm.request.functions.0.name": "f", "llm.request.functions.0.parameters": '{"type": "object"}'},
        {"llm.tools": """[{"name": "f", "parameters": "{'type': 'object'}"}]"""},
        {"llm.invocation_parameters": '{"n": 1, "tools": [{"name": "f", "parameters": {"type": "object"}}]}'},
        {"ai.prompt.tools": ['{"type": "function", "name": "f", "inputSchema": {"type": "object"}}']},
    ],
)
def test_the_offered_tools_are_read(tmp_path: Path, fields: dict[str, Any]) -> None:
    trace = one(tmp_path, request(span({"input.value": "Where is K92?", "output.value": "Soon.", **fields})))
    function = {"name": "f", "parameters": {"type": "object"}}
    assert json.loads(trace.tools or "[]") == [{"type": "function", "function": function}]


@pytest.mark.parametrize("reasons", [["tool_calls"], '["tool_calls"]'])
def test_a_text_whose_call_was_lost_is_unreadable(tmp_path: Path, reasons: Any) -> None:
    output = [answer(text("Let me look."), finish_reason="tool_calls")]
    fields = {"gen_ai.input.messages": ASKED, "gen_ai.response.finish_reasons": reasons}
    for completion_fields in ({"gen_ai.output.messages": output}, {"gen_ai.completion": "Let me look."}):
        trace = one(tmp_path, request(span({**fields, **completion_fields})))
        assert trace.unreadable == "output: a text that ended in a call, which is not there"
    kept = [answer(text("Let me look."), CALL_PART, finish_reason="tool_calls")]
    assert one(tmp_path, request(span({**fields, "gen_ai.output.messages": kept}))).unreadable is None
