import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.conversation import (
    FIELDS,
    answer_of,
    as_message,
    calls_of,
    conversation,
    from_request,
    in_one_form,
    is_whole,
    joined,
    received,
    shown,
    shown_answer,
    split,
    to_prompt,
    to_request,
)
from tests.pipeline.core.tool_templates import LOOKUP, OFFERED, answer, calls

USER = {"role": "user", "content": "Where is A7?"}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
CALLS = st.lists(
    st.builds(
        lambda name, arguments: {"type": "function", "function": {"name": name, "arguments": arguments}},
        st.text(max_size=6),
        st.dictionaries(st.text(max_size=4), VALUES, max_size=3),
    ),
    min_size=1,
    max_size=3,
)


@given(st.text(alphabet="ab \n{}", max_size=12), CALLS)
def test_an_answer_is_its_text_and_its_calls(text: str, made: list[dict[str, Any]]) -> None:
    said = text.rstrip("\n") if text.strip() else ""
    assert split(joined(text, made)) == (said, made)


@pytest.mark.parametrize(
    "text",
    [
        "", "Use <tool_call> to call.", '<tool_call>{"name": "f"</tool_call>',
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}}</tool_call> and more', '<tool_call>{"name": "f", "arguments": {}}',
    ],
)  # fmt: skip
def test_what_is_no_call_stays_a_text(text: str) -> None:
    assert split(text) == (text, [])
    assert shown_answer(text) == text
    assert as_message(text) == {"role": "assistant", "content": text}


def test_a_row_is_one_conversation_with_its_tools() -> None:
    web = {"type": "web_search"}
    row = {
        "messages": [
            {**USER, "tool_calls": None, "tool_call_id": None, "name": None},
            {"role": "assistant", "content": None, "tool_calls": calls(("lookup", {"order": "A7"}))},
            {"role": "tool", "content": "sent", "tool_call_id": "c0", "name": "lookup"},
        ],
        "tools": json.dumps([LOOKUP, web]),
    }
    held = conversation(row)
    assert [list(message)[2:] for message in held] == [[], [], ["tool_calls"], ["tool_call_id", "name"]]
    assert json.loads(held[0]["content"]) == [LOOKUP], "no model can call what its provider executes"
    whole = [{name: message.get(name) for name in FIELDS} for message in held]
    assert to_prompt(whole) == json.dumps(held, ensure_ascii=False)
    assert conversation({"messages": [USER]}) == [USER], "rows of a table without the column"


def test_equal_questions_are_equal_whatever_their_call_ids() -> None:
    def asked(*ids: str) -> list[dict[str, str]]:
        messages: list[dict[str, Any]] = []
        for each in ids:
            call = {"id": each, "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
            messages.append({"role": "assistant", "content": "", "tool_calls": json.dumps([call])})
            messages.append({"role": "tool", "content": "2", "tool_call_id": each})
        return conversation({"messages": [USER, *messages]})

    first = asked("call_x7", "call_y8")
    assert first == asked("toolu_1", "toolu_1"), "an application may use an id again"
    assert [message["tool_call_id"] for message in first[2::2]] == ["call00000", "call00001"]


def test_a_conversation_goes_out_and_comes_in_as_it_was() -> None:
    row = {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": calls(("f", {"a": 1}), ("g", {}))}]}
    row["messages"].append({"role": "tool", "content": "2", "tool_call_id": "c1", "name": "g"})
    held = conversation({**row, "tools": json.dumps([LOOKUP])})
    sent = to_request(held)
    assert sent["tools"] == [LOOKUP] and sent["messages"][1]["tool_calls"][1]["function"]["arguments"] == "{}"
    assert from_request(sent["messages"], sent["tools"]) == held
    assert to_request([USER]) == {"messages": [USER]}


def test_what_a_server_answers_is_one_text() -> None:
    function = {"name": "lookup", "arguments": '{"order":"A7"}'}
    call = {"id": "x", "type": "function", "function": function}
    assert received(None, [call]) == answer("lookup", {"order": "A7"})
    assert received("Yes.", []) == "Yes."
    broken = received("I try.", [{**call, "function": {**function, "arguments": "{"}}])
    assert broken.startswith("I try.\n<tool_call>") and split(broken) == (broken, [])


@pytest.mark.parametrize(
    ("held", "whole"),
    [
        (calls(("f", {})), True),
        ('[{"type": "web_search_call", "function": {"name": "web_search", "arguments": "{}"}}]', False),
        ('[{"type": "function", "function": {"name": "f", "arguments": "{broken"}}]', False),
        ('[{"type": "function", "function": {"name": "f", "arguments": "[1]"}}]', False),
        ('[{"name": "f", "arguments": "{}"}]', False),
        ("no JSON", False),
    ],
)
def test_only_whole_calls_can_be_shown_to_a_model(held: str, whole: bool) -> None:
    assert (calls_of(held) is not None) is whole
    assert is_whole([USER, {"role": "assistant", "content": "", "tool_calls": held}]) is whole
    assert is_whole([USER], held) is whole and is_whole([USER])
    assert (split(answer_of("So.", held))[1] != []) is whole


def test_people_and_judges_see_calls_as_lines() -> None:
    asked = [
        {"role": "tools", "content": json.dumps([LOOKUP])},
        USER,
        {"role": "assistant", "content": "I look.", "tool_calls": calls(("lookup", {"order": "A7"}))},
        {"role": "tool", "content": "sent"},
    ]
    assert [message["content"] for message in shown(asked)] == [
        'tool: lookup({"type": "object", "properties": {"order": {"type": "string"}}}): Finds an order.',
        "Where is A7?",
        'I look.\ncall: lookup({"order": "A7"})',
        "sent",
    ]
    assert shown_answer(answer("lookup", {"order": "Ä"})) == 'call: lookup({"order": "Ä"})'


REFUND = {"type": "function", "function": {"name": "refund", "parameters": {"type": "object"}}}
ASKED = [{"role": "tools", "content": json.dumps([LOOKUP, REFUND])}, {"role": "user", "content": "A7?"}]
ONE = [("lookup", {"order": "A7"})]
BOTH = [*ONE, ("refund", {"euro": {"sum": 3}, "why": "a; b [TOOL_CALLS]"})]
ARGUMENTS = json.dumps(BOTH[1][1])


@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ('{"name": "lookup", "parameters": {"order": "A7"}}', "", ONE),
        ('\n<|python_tag|>{"name": "lookup", "arguments": {"order": "A7"}}', "", ONE),
        ('{"name": "lookup", "parameters": {"order": "A7"}}; {"name": "lookup", "parameters": {}}', "",
         [*ONE, ("lookup", {})]),
        ('[TOOL_CALLS] [{"name": "lookup", "arguments": {"order": "A7"}, "id": "a1b2c3d4e"}]', "", ONE),
        ('I look.[TOOL_CALLS][{"name": "lookup", "arguments": {"order": "A7"}}]', "I look.", ONE),
        ('[{"name": "lookup", "arguments": {"order": "A7"}}]', "", ONE),
        ('[TOOL_CALLS]lookup[ARGS]{"order": "A7"}', "", ONE),
        ('[TOOL_CALLS]lookup[CALL_ID]a1b2c3d4e[ARGS]{"order": "A7"}[TOOL_CALLS]lookup{}', "", [*ONE, ("lookup", {})]),
        (f'lookup{{"order": "A7"}}refund{ARGUMENTS}', "", BOTH),
        (f'{{"name": "lookup", "parameters": {{"order": "A7"}}}}{{"name": "refund", "parameters": {ARGUMENTS}}}', "",
         BOTH),
    ],
)  # fmt: skip
def test_a_call_of_another_family_is_read(text: str, said: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    read, made = split(in_one_form(text, ASKED))
    assert read == said
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in made] == calls


@pytest.mark.parametrize(
    "text",
    [
        "It is sent.",
        "",
        '{"order": "A7"}',
        '{"name": "drop", "parameters": {}}',
        '{"name": "lookup", "parameters": "A7"}',
        '{"name": "lookup", "parameters": {"order": "A7"}',
        '{"name": "lookup", "parameters": {}} I hope that helps.',
        'Like so: {"name": "lookup", "parameters": {}}',
        '[TOOL_CALLS] [{"name": "lookup", "arguments": {}}, {"name": "drop", "arguments": {}}]',
        '[TOOL_CALLS]drop[ARGS]{"order": "A7"}',
        '[TOOL_CALLS]lookup[ARGS]{"order": ',
        "[" * 100_000,
        answer("lookup", {"order": "A7"}),
    ],
)
def test_what_is_no_call_of_an_offered_tool_stays(text: str) -> None:
    assert in_one_form(text, ASKED) == text


def test_nothing_is_read_where_no_tool_was_offered() -> None:
    text = '{"name": "lookup", "parameters": {"order": "A7"}}'
    assert in_one_form(text, ASKED[1:]) == text
    assert in_one_form(text, [OFFERED]) == answer("lookup", {"order": "A7"})
