"""Personal data in columns: vectorised passes clear most rows, the others are masked by the functions of `pii`.
A masked column comes with whether a row is unmaskable; its text is then `[BINARY]`. Nulls stay null."""

import unicodedata
from collections.abc import Callable
from functools import partial, reduce
from typing import Literal

import numpy as np
import pyarrow as pa

from pipeline.traces.arrow import pc
from pipeline.traces.pii import (
    BINARY,
    HIDES,
    INVISIBLE,
    MAX_CHARS,
    ODD,
    Unmaskable,
    mask,
    mask_json,
    pseudonym,
)
from pipeline.traces.pii.kinds import COARSE, COARSE_JSON

Mask = Callable[[str], str]
Masked = tuple[pa.Array, pa.Array]
Passes = tuple[tuple[str, ...], str]
"""Coarse patterns of personal data, and of what may hide it."""

_TEXT: Passes = (COARSE, r"\\u[0-9A-Fa-f]")
_JSON: Passes = (COARSE_JSON, HIDES)


def mask_column(values: pa.Array) -> Masked:
    return _masked(values, _TEXT, mask)


def mask_calls(values: pa.Array) -> Masked:
    """A column of tool calls."""
    return _masked(values, _JSON, partial(mask_json, refuse=True))


def mask_metadata(values: pa.Array) -> Masked:
    return _masked(values, _JSON, mask_json)


def pseudonyms(values: pa.Array) -> Masked:
    """A column of identities."""
    return _masked(_normalised(values, "NFC"), _TEXT, lambda identity: pseudonym(identity) or "")


def mask_repeated(values: pa.Array, function: Callable[[pa.Array], Masked]) -> Masked:
    """A column with few different texts, each of which is masked once."""
    coded = values.dictionary_encode()
    masked, refused = function(coded.dictionary)
    if masked is coded.dictionary:
        return values, _flags_at([], len(values))
    return masked.take(coded.indices), pc.fill_null(refused.take(coded.indices), False)


def mask_messages(values: pa.ListArray) -> tuple[pa.ListArray, pa.Array]:
    messages = values.flatten()
    before = messages.flatten()
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    unmaskable = np.zeros(len(values), bool)
    columns: list[pa.Array] = []
    functions = {"role": partial(mask_repeated, function=mask_column), "tool_calls": mask_calls}
    for field, column in zip(messages.type, before, strict=True):
        masked, refused = functions.get(field.name, mask_column)(column)
        columns.append(masked)
        at = np.flatnonzero(refused.to_numpy(zero_copy_only=False))
        unmaskable[np.searchsorted(offsets, at, side="right") - 1] = True
    if all(new is old for new, old in zip(columns, before, strict=True)):
        return values, pa.array(unmaskable)
    struct = pa.StructArray.from_arrays(columns, fields=list(messages.type), mask=messages.is_null())
    lists = pa.ListArray.from_arrays(pa.array(offsets), struct, type=values.type, mask=values.is_null())
    return lists, pa.array(unmaskable)


def _masked(values: pa.Array, passes: Passes, function: Mask) -> Masked:
    rows = _suspects(values, passes)
    texts: list[str] = values.take(pa.array(rows)).to_pylist()
    changed: dict[int, str] = {}
    refused: list[int] = []
    for row, text in zip(rows, texts, strict=True):
        try:
            masked = function(text)
        except Unmaskable:
            refused.append(row)
            masked = BINARY
        if masked is not text:
            changed[row] = masked
    if changed:
        replaced = pa.array(list(changed.values()), values.type)
        values = pc.replace_with_mask(values, _flags_at(list(changed), len(values)), replaced)
    return values, _flags_at(refused, len(values))


def _suspects(values: pa.Array, passes: Passes) -> np.ndarray:
    """Numbers of the rows that have to be masked one by one; the others are clean, or null."""
    coarse, hides = passes
    if values.null_count == len(values):
        return np.empty(0, np.int64)
    seen = values
    if not pc.all(pc.string_is_ascii(values)).as_py():
        seen, hides = _normalised(values, "NFKC"), f"{hides}|{INVISIBLE}|{ODD}"
    found = [pc.match_substring_regex(seen, pattern) for pattern in (*coarse[:-1], f"{coarse[-1]}|{hides}")]
    flags = reduce(pc.or_, found, pc.greater(pc.binary_length(values), MAX_CHARS))
    return np.flatnonzero(pc.fill_null(flags, False).to_numpy(zero_copy_only=False))


def _normalised(values: pa.Array, form: Literal["NFC", "NFKC"]) -> pa.Array:
    """The column in a normal form of Unicode, by Python: Arrow leaves some letters decomposed."""
    where = pc.fill_null(pc.invert(pc.string_is_ascii(values)), False)
    before: list[str] = values.filter(where).to_pylist()
    texts = [unicodedata.normalize(form, text) for text in before]
    return values if texts == before else pc.replace_with_mask(values, where, pa.array(texts, values.type))


def _flags_at(rows: list[int], length: int) -> pa.Array:
    flags = np.zeros(length, bool)
    flags[rows] = True
    return pa.array(flags)
