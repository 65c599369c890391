"""Calls as Llama's and Mistral's models write them, and what only looks like one."""

import json
from typing import Any

import pytest

from pipeline.core.conversation import in_one_form, split
from tests.pipeline.core.tool_templates import LOOKUP, OFFERED, answer

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
