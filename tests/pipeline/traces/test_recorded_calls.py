"""What tools returned in the traces: which result belongs to which call, and which call to which prompt."""

import json
from typing import Any

import pytest

from pipeline.demo.desk.requests import call_text
from pipeline.traces.recorded_calls import Call, canonical, conversation_key, recorded_calls, results_by_prompt

ASKED = [{"role": "user", "content": "When does K48 come?"}]
LOOKUP = Call("lookup_order", '{"order": "K48"}')


def call(arguments: Any, id: str | None = None, name: str = "lookup_order") -> dict[str, Any]:
    return {**({"id": id} if id else {}), "type": "function", "function": {"name": name, "arguments": arguments}}


def turn(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": json.dumps(calls)}


def result(content: str, id: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": id, "name": None}


def test_results_belong_to_their_calls_by_id() -> None:
    messages = [
        *ASKED,
        turn(call('{"order": "K48"}', "a"), call('{"order": "K12"}', "b")),
        result("of K12", "b"),
        result("of K48", "a"),
    ]
    held = {each.call.arguments: each.content for each in recorded_calls(messages)}
    assert held == {'{"order": "K48"}': "of K48", '{"order": "K12"}': "of K12"}
    by_order = [turn(call('{"order": "K48"}'), call('{"order": "K12"}')), result("of K48")]
    assert [(each.call, each.content) for each in recorded_calls(by_order)] == [(LOOKUP, "of K48")]
    assert list(recorded_calls([turn(call('{"order": "K4', "x")), result("fine", "x")])) == []
    assert results_by_prompt([("t1", ASKED), ("t2", [*ASKED, turn(call("{}"))])], {conversation_key(ASKED)}) == {}


@pytest.mark.parametrize("arguments", ['{"order":"K48"}', '{ "order" : "K48" }', {"order": "K48"}])
def test_a_call_is_the_same_however_it_is_written(arguments: Any) -> None:
    [recorded] = recorded_calls([turn(call(arguments, "x")), result("fine", "x")])
    assert recorded.call == LOOKUP
    assert canonical({"b": 1, "a": [2]}) == '{"a": [2], "b": 1}'
    [written] = recorded_calls([{"role": "assistant", "content": call_text("K48")}, result("fine")])
    assert written.call == LOOKUP


def test_a_result_is_of_its_own_conversation_alone() -> None:
    other = [{"role": "user", "content": "Who brings K48?"}]
    rows = [
        ("t1", [*ASKED, turn(call('{"order": "K48"}')), result("for the first")]),
        ("t2", [*other, turn(call('{"order": "K48"}')), result("for the second")]),
    ]
    held = results_by_prompt(rows, {conversation_key(ASKED)})
    assert held == {conversation_key(ASKED): {LOOKUP: "for the first"}}


def test_later_calls_belong_to_every_prompt_before_them() -> None:
    first = [*ASKED, turn(call('{"order": "K48"}')), result("of K48")]
    whole = [*first, turn(call('{"order": "K12"}')), result("of K12")]
    held = results_by_prompt([("t", whole)], {conversation_key(ASKED), conversation_key(first)})
    assert set(held[conversation_key(ASKED)].values()) == {"of K48", "of K12"}
    assert set(held[conversation_key(first)].values()) == {"of K12"}


def test_of_several_results_the_first_traces_counts() -> None:
    rows = [(f"t{n}", [*ASKED, turn(call('{"order": "K48"}')), result(f"result {n}")]) for n in (3, 1, 2)]
    assert results_by_prompt(rows, {conversation_key(ASKED)}) == {conversation_key(ASKED): {LOOKUP: "result 1"}}


def test_ids_do_not_tell_conversations_apart() -> None:
    one, other = ([*ASKED, turn(call('{"order": "K48"}', id)), result("fine", id)] for id in "ab")
    assert conversation_key(one) == conversation_key(other)
    assert conversation_key(one) != conversation_key(ASKED)
    assert conversation_key([{"role": "tools", "content": "[]"}, *ASKED]) == conversation_key(ASKED)
