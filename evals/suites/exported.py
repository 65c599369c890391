"""Items out of rows of a fine-tuning file: what was asked, and the answer as the reference where it can be compared."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pipeline.core.storage import digest_json
from pipeline.rewards.verifiers.answers import final_answer, plain_number
from pipeline.traces.sources import chat
from pipeline.traces.sources.shapes import at

SHORT = 60
"""Characters of an answer that is compared as a text."""


class SuiteItems(NamedTuple):
    check: Literal["math", "normalised", "none"]
    """How all of them are compared but calls of tools; none: only a judge can."""
    items: list[dict[str, Any]]
    faults: list[str]
    """Rows that are left out."""


def items_of(rows: Sequence[Mapping[str, Any]], reference: str = "") -> SuiteItems:
    """`reference`: the path of the reference; without one it is the last answer of the conversation, or the preferred
    one."""
    asked, faults = dict[str, dict[str, Any]](), list[str]()
    for number, row in enumerate(rows, 1):
        item = _item(row, reference)
        key = digest_json(item["messages"]) if item else ""
        if item is None or key in asked:
            faults.append(f"row {number}: {'it asks what another row asks' if item else 'no question, or no answer'}")
        else:
            asked[key] = item
    items = list(asked.values())
    texts = [str(item["reference"]) for item in items if "check" not in item]
    if all(plain_number(text) is not None or final_answer(text) for text in texts):
        return SuiteItems("math", items, faults)
    if all(len(text) <= SHORT and "\n" not in text for text in texts):
        return SuiteItems("normalised", items, faults)
    for item in items:
        del item["reference"]
    return SuiteItems("none", items, faults)


def _item(row: Mapping[str, Any], reference: str) -> dict[str, Any] | None:
    given: Mapping[str, Any] = row.get("input", row)
    messages: list[Mapping[str, Any]] = [*chat.parse(given["messages"], "user").messages]
    if reference:
        answer: Mapping[str, Any] = {"content": at(row, reference)}
    elif "preferred_output" in row:
        answer = next(iter(chat.of_output(row["preferred_output"]).messages), {})
    else:
        answer = messages.pop() if messages and messages[-1]["role"] == "assistant" else {}
    calls, text = answer.get("tool_calls"), answer.get("content")
    if not messages or not (calls or text):
        return None
    asked = [
        {**each, **({"tool_calls": json.loads(each["tool_calls"])} if "tool_calls" in each else {})}
        for each in messages
    ]
    item = {"messages": asked, "reference": calls or text} | ({"check": "calls"} if calls else {})
    return item | ({"tools": tools} if (tools := given.get("tools")) else {})
