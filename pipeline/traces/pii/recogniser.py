"""A recogniser of the recipe's own (`traces.pii.recogniser`): its spans are masked as `[PERSONAL]` in admitted rows. A
row on which it raises, or of whose calls a mask leaves no JSON, is discarded; a masked reference is none."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.recipe.custom import check_call, load_code
from pipeline.traces.arrow import with_rows
from pipeline.traces.pii.kinds import PERSONAL

_TEXTS = ("completion", "error")


@cache
def recogniser(name: str) -> Callable[[str], Any]:
    """The function. Raises ValueError that says what to do where there is none."""
    try:
        function = load_code(name)
        check_call(name, function, ("text",), {})
    except ValueError as error:
        raise ValueError(f"traces.pii.recogniser: {error}") from error
    return function


def mask_recognised(batch: pa.RecordBatch, admitted: np.ndarray, name: str) -> tuple[pa.RecordBatch, np.ndarray]:
    """The batch with what the recogniser gives of its `admitted` rows masked, and the rows to discard."""
    find, refused, places = recogniser(name), np.zeros(batch.num_rows, bool), np.flatnonzero(admitted)
    rows = batch.select([*_TEXTS, "reference", "messages", "tool_calls"]).take(pa.array(places)).to_pylist()
    for place, row in zip(places.tolist(), rows, strict=True):
        try:
            row.update({each: _masked(row[each], find) for each in _TEXTS})
            row["reference"] = row["reference"] if _masked(row["reference"], find) == row["reference"] else None
            row["tool_calls"] = _masked_json(row["tool_calls"], find)
            for message in row["messages"]:
                message["content"] = _masked(message["content"], find)
                message["tool_calls"] = _masked_json(message["tool_calls"], find)
        except Exception:  # the boundary to code of others: what it cannot read is not known to be clean
            refused[place] = True
    return with_rows(batch, places, rows), refused


def _masked(text: str | None, find: Callable[[str], Any]) -> str | None:
    if not text:
        return text
    parts, done = list[str](), 0
    for start, end in sorted((int(span[0]), int(span[1])) for span in find(text)):
        if not 0 <= start <= end <= len(text):
            raise ValueError("a recogniser gave a span outside of the text")
        if end > done:
            parts += [text[done : max(start, done)], PERSONAL] if start >= done else []
            done = end
    return "".join([*parts, text[done:]])


def _masked_json(text: str | None, find: Callable[[str], Any]) -> str | None:
    masked = _masked(text, find)
    if masked != text:
        json.loads(masked or "")
    return masked
