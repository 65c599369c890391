"""Marks the rows of a batch, before the gates, whose texts are placeholders of loggers (a recipe adds
`traces.placeholders`) or hold control tokens, and takes thoughts off the texts of assistants."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.core.thoughts import HINT, ControlTokens, check, without_thoughts
from pipeline.recipe.traces import Placeholder
from pipeline.traces.arrow import pc, with_rows
from pipeline.traces.sources.shapes import TABLES

Makes = Literal["redacted", "cut", "payload"]


class Pattern(NamedTuple):
    """`whole`: it stands for a message only where the message holds nothing else."""

    text: str
    makes: Makes
    whole: bool = False


# Python and RE2 read the patterns alike.
KNOWN = tuple(Pattern(**each) for each in TABLES["placeholders"])


class Placeholders:
    """The known placeholders and those of a recipe. `pattern` matches every text that may hold one."""

    def __init__(self, own: Sequence[Placeholder]) -> None:
        rows = (*KNOWN, *(Pattern(re.escape(each.text), each.makes, each.makes == "redacted") for each in own))
        self.pattern = "|".join(rf"^\s*{row.text}\s*$" if row.whole else row.text for row in rows)
        self._rows = [(re.compile(rf"\s*{row.text}\s*\Z" if row.whole else row.text), row) for row in rows]

    def made_of(self, text: str) -> Makes | None:
        """What a text's placeholder makes of the message; None for a text without one."""
        for regex, row in self._rows:
            if regex.match(text) if row.whole else regex.search(text):
                return row.makes
        return None


@cache
def placeholders(own: tuple[Placeholder, ...]) -> Placeholders:
    return Placeholders(own)


UNCLOSED = "a thought that is not closed"
PREFILLED = "input: it ends in an assistant's turn"


COLUMNS = ("completion", "reference", "messages", "tool_calls", "unreadable", "not_recorded", "has_payload")


def read_texts(batch: pa.RecordBatch, own: Sequence[Placeholder]) -> pa.RecordBatch:
    known = placeholders(tuple(own))
    places = np.flatnonzero(_odd(batch, f"{HINT}|{known.pattern}"))
    rows = batch.select(COLUMNS).take(pa.array(places)).to_pylist()
    for row in rows:
        _read(row, known)
    return with_rows(batch, places, rows)


def _odd(batch: pa.RecordBatch, pattern: str) -> np.ndarray:
    """Whether a row has a text that matches, or its prompt ends in an assistant's turn."""
    messages, rows = batch["messages"].flatten(), pc.list_parent_indices(batch["messages"]).to_numpy()

    def found(texts: pa.Array) -> np.ndarray:
        return pc.fill_null(pc.match_substring_regex(texts, pattern), False).to_numpy(zero_copy_only=False)

    odd = np.logical_or.reduce([found(batch[name]) for name in ("completion", "reference", "tool_calls")])
    for name in ("content", "tool_calls"):
        odd[rows[found(messages.field(name))]] = True
    answers = pc.fill_null(pc.equal(messages.field("role"), "assistant"), False).to_numpy(zero_copy_only=False)
    odd[rows[answers & np.append(rows[1:] != rows[:-1], True)[: len(rows)]]] = True
    return odd


def _read(row: dict[str, Any], known: Placeholders) -> None:
    """Take the thoughts off a row's texts and mark its faults, of which the first one stays."""

    def mark(column: str, fault: str) -> None:
        row[column] = row[column] or fault

    def read(side: str, text: str | None, is_answer: bool = False) -> str | None:
        made = known.made_of(text or "")
        if made == "payload":
            row["has_payload"] = True
        elif made is not None:
            mark("not_recorded", f"{side}: {made}")
        if not text or made is not None:
            return text
        try:
            answer = without_thoughts(text) if is_answer else check(text) or text
        except ControlTokens as error:
            mark("unreadable", f"{side}: {error}")
            return text
        if answer is None and side == "input":
            mark("unreadable", f"{side}: {UNCLOSED}")
        return answer or ""

    row["completion"] = read("output", row["completion"], is_answer=True)
    # An expected answer that was not recorded is none: nothing can be checked against it.
    row["reference"] = None if known.made_of(row["reference"] or "") else row["reference"]
    for message in row["messages"]:
        message["content"] = read("input", message["content"], message["role"] == "assistant")
    read("output", row["tool_calls"])
    for message in row["messages"]:
        read("input", message["tool_calls"])
    if row["messages"] and row["messages"][-1]["role"] == "assistant":
        mark("unreadable", PREFILLED)
