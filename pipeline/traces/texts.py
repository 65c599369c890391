"""Marks the rows of a batch, before the gates, whose texts are placeholders of loggers (a recipe adds
`traces.placeholders`) or hold control tokens, and takes thoughts off the texts of assistants."""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.core.thoughts import HINT, ControlTokens, check, without_thoughts
from pipeline.recipe.traces import Placeholder
from pipeline.traces.arrow import pc

Makes = Literal["redacted", "cut", "payload"]


class Pattern(NamedTuple):
    """`whole`: it stands for a message only where the message holds nothing else."""

    text: str
    makes: Makes
    whole: bool = False


# Of LiteLLM (message logging off; spend logs over a length), OpenInference, Sentry, Logfire, applications, and Langfuse
# (a failed mask, a field over its size, an image, audio or file). Python and RE2 read the patterns alike.
KNOWN = (
    Pattern("redacted-by-litellm", "redacted", whole=True),
    Pattern(r"[\[<({*_]+(?i:redacted|scrubbed)[\])}>*_]+", "redacted", whole=True),
    Pattern(r"\[Filtered\]", "redacted", whole=True),
    Pattern(r"\[Scrubbed due to [^\]\n]*\]", "redacted", whole=True),
    Pattern("<fully masked due to failed mask function>", "redacted", whole=True),
    Pattern("<truncated due to size exceeding limit>", "cut"),
    Pattern(r"\(litellm_truncated ", "cut"),
    Pattern("@@@langfuseMedia:type=text/", "cut"),
    Pattern("@@@langfuseMedia:", "payload"),
    Pattern("<Upload handling failed for LangfuseMedia", "payload"),
)


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


class Marks:
    """Faults of rows by their number; the first one of a row stays."""

    def __init__(self) -> None:
        self.unreadable: dict[int, str] = {}
        self.not_recorded: dict[int, str] = {}
        self.has_payload: dict[int, bool] = {}

    def read(self, row: int, side: str, text: str, known: Placeholders, read: Callable[[str], str | None]) -> str:
        """The text, or what `read` makes of it; "" for None."""
        made = known.made_of(text)
        if made == "payload":
            self.has_payload[row] = True
        elif made is not None:
            self.not_recorded.setdefault(row, f"{side}: {made}")
        if made is not None:
            return text
        try:
            answer = read(text)
        except ControlTokens as error:
            self.unreadable.setdefault(row, f"{side}: {error}")
            return text
        if answer is None and side == "input":
            self.unreadable.setdefault(row, f"{side}: {UNCLOSED}")
        return answer or ""


def read_texts(batch: pa.RecordBatch, own: Sequence[Placeholder]) -> pa.RecordBatch:
    known, marks = placeholders(tuple(own)), Marks()
    messages = batch["messages"].flatten()
    rows = pc.list_parent_indices(batch["messages"]).to_numpy()
    roles, contents = messages.field("role"), messages.field("content")

    def of_message(place: int, text: str) -> str:
        read = without_thoughts if roles[place].as_py() == "assistant" else _plain
        return marks.read(int(rows[place]), "input", text, known, read)

    def of_answer(row: int, text: str) -> str:
        return marks.read(row, "output", text, known, without_thoughts)

    pattern = f"{HINT}|{known.pattern}"
    columns = {"completion": _changed(batch["completion"], pattern, of_answer)}
    # An expected answer that was not recorded is none: nothing can be checked against it.
    columns["reference"] = _changed(batch["reference"], known.pattern, lambda _row, _text: None)
    contents = _changed(contents, pattern, of_message)
    _changed(batch["tool_calls"], pattern, lambda row, text: marks.read(row, "output", text, known, _plain))
    calls = messages.field("tool_calls")
    _changed(calls, pattern, lambda place, text: marks.read(int(rows[place]), "input", text, known, _plain))
    for row in rows[_last(batch["messages"], pc.equal(roles, "assistant"))].tolist():
        marks.unreadable.setdefault(row, PREFILLED)
    if contents is not messages.field("content"):
        columns["messages"] = _with_contents(batch["messages"], messages, contents)
    for name in ("unreadable", "not_recorded", "has_payload"):
        columns[name] = _marked(batch[name], getattr(marks, name))
    arrays = [columns.get(name, batch[name]) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _plain(text: str) -> str:
    check(text)
    return text


def _changed(values: pa.Array, pattern: str, read: Callable[[int, str], str | None]) -> pa.Array:
    """The column with what `read` makes of the texts that match."""
    if values.null_count == len(values):
        return values
    odd = pc.fill_null(pc.match_substring_regex(values, pattern), False)
    places = np.flatnonzero(odd.to_numpy(zero_copy_only=False)).tolist()
    texts: list[str] = [values[place].as_py() for place in places]
    new = [read(place, text) for place, text in zip(places, texts, strict=True)]
    return values if new == texts else pc.replace_with_mask(values, odd, pa.array(new, values.type))


def _last(lists: pa.ListArray, flags: Any) -> np.ndarray:
    """Places, in the flat values, of the last element of each list, where it is flagged."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths)[lengths > 0] - 1
    return ends[pc.fill_null(flags, False).to_numpy(zero_copy_only=False)[ends]]


def _with_contents(lists: pa.ListArray, messages: pa.StructArray, contents: pa.Array) -> pa.ListArray:
    fields = list(messages.type)
    arrays = [contents if f.name == "content" else messages.field(f.name) for f in fields]
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(arrays, fields=fields), type=lists.type)


def _marked(values: pa.Array, marks: dict[int, Any]) -> pa.Array:
    """The column with the marks; a value that is there stays, but for a boolean."""
    if not marks:
        return values
    kept = {row: mark for row, mark in marks.items() if mark is True or not values[row].is_valid}
    flags = np.zeros(len(values), bool)
    flags[list(kept)] = True
    return pc.replace_with_mask(values, pa.array(flags), pa.array([kept[row] for row in sorted(kept)], values.type))
