"""What a fine-tuning API exports: the files of a job, and items out of the rows of one: what was asked, and the answer
as the reference where it can be compared."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from pipeline.core.storage import digest_json
from pipeline.rewards.verifiers.answers import final_answer, plain_number
from pipeline.traces.detect import format_of
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


class TuningFile(NamedTuple):
    """The rows of a file that are of its most common format. `faults`: what was left out, with its lines."""

    path: Path
    format: str
    rows: list[dict[str, Any]]
    faults: list[str]


def read_file(path: Path) -> TuningFile:
    faults, read = list[str](), list[tuple[int, str, dict[str, Any]]]()
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError:
            faults.append(f"{path.name}, line {number}: cut, or no JSON")
            continue
        if isinstance(row, dict):
            read.append((number, format_of(cast(dict[str, Any], row)), cast(dict[str, Any], row)))
    if not read:
        return TuningFile(path, "", [], [*faults, f"{path.name}: empty"])
    most = Counter(name for _, name, _ in read).most_common(1)[0][0]
    faults += [f"{path.name}, line {number}: {name} among {most}" for number, name, _ in read if name != most]
    return TuningFile(path, most, [row for _, name, row in read if name == most], faults)


def job_of(folder: Path) -> dict[str, Any]:
    """The job's object, or nothing. Raises ValueError where there are several, or one is cut."""
    jobs = list[dict[str, Any]]()
    for path in sorted(folder.glob("*.json")):
        try:
            read = json.loads(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path} is cut, or no JSON ({error}). Fetch it again.") from error
        jobs += [read] if isinstance(read, dict) and read.get("object") == "fine_tuning.job" else []
    if len(jobs) > 1:
        raise ValueError(f"{folder} has {len(jobs)} jobs. Give a folder with the files of one.")
    return jobs[0] if jobs else {}
