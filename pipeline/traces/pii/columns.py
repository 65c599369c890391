"""Personal data in columns: whole batches are cleared by vectorised passes, and only what they cannot clear is read.

Owns the way from a column to the few rows that `pii` must look into. Refuses to know a pattern: the result is what
`pii`'s functions give row by row.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Literal

import numpy as np
import pyarrow as pa

from pipeline.traces.arrow import pc
from pipeline.traces.pii import (
    BINARY,
    BLOB,
    CANDIDATES,
    HIDES,
    INVISIBLE,
    MAX_CHARS,
    ODD,
    Unmaskable,
    has_kind,
    mask,
    mask_calls,
    mask_json,
    pseudonym,
)
from pipeline.traces.pii.kinds import COARSE, COARSE_JSON

Mask = Callable[[str], str]
Passes = tuple[tuple[str, ...], tuple[str, ...], str]
"""Patterns of the coarse passes, of exact passes over what they leave, and of what only single rows can clear."""

_TEXT: Passes = (COARSE, (*CANDIDATES, BLOB), r"\\u[0-9A-Fa-f]")
_JSON: Passes = (COARSE_JSON, (*CANDIDATES, BLOB), HIDES)
_DISGUISE = f"{INVISIBLE}|{ODD}"


def mask_column(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """A string column masked as `pii.mask` masks its texts, and whether a row is unmaskable (its text is `[BINARY]`).

    Nulls stay null and are maskable.
    """
    return _masked(values, _TEXT, mask)


def mask_calls_column(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """A column of tool calls masked as `pii.mask_calls` masks them, and whether a row is unmaskable."""
    if values.null_count == len(values):
        return values, _no(len(values))
    plain = pc.replace_substring(values, '\\"', '"')  # arguments are JSON in a string of JSON
    return _masked(values, _JSON, mask_calls, _suspects(plain, _JSON))


def mask_tools_column(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """A column of definitions of tools, of which there are few: masked as JSON, and whether a row is unmaskable."""
    if values.null_count == len(values):
        return values, _no(len(values))
    coded = values.dictionary_encode()
    masked, refused = _masked(coded.dictionary, _JSON, lambda text: mask_json(text, refuse=True))
    return masked.take(coded.indices), pc.fill_null(refused.take(coded.indices), False)


def mask_json_column(values: pa.Array) -> pa.Array:
    """A column of JSON objects masked as `pii.mask_json` masks them."""
    return _masked(values, _JSON, mask_json)[0]


def pseudonym_column(values: pa.Array) -> pa.Array:
    """A column of identities in NFC, those that hold personal data replaced by `pii.pseudonym`."""
    return _masked(_normalised(values, "NFC"), _TEXT, lambda identity: pseudonym(identity) or "")[0]


def mask_messages(values: pa.ListArray) -> tuple[pa.ListArray, pa.Array]:
    """Lists of `rows.MESSAGE` with role, content and tool calls masked, and whether a row is unmaskable."""
    messages = values.flatten()
    before = messages.flatten()
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    unmaskable = np.zeros(len(values), bool)
    columns: list[pa.Array] = []
    for field, column in zip(messages.type, before, strict=True):
        masked, refused = _repeated(column) if field.name == "role" else _by_name(field.name, column)
        columns.append(masked)
        if refused.true_count:
            at = np.flatnonzero(refused.to_numpy(zero_copy_only=False))
            unmaskable[np.searchsorted(offsets, at, side="right") - 1] = True
    if all(new is old for new, old in zip(columns, before, strict=True)):
        return values, pa.array(unmaskable)
    struct = pa.StructArray.from_arrays(columns, fields=list(messages.type), mask=messages.is_null())
    lists = pa.ListArray.from_arrays(pa.array(offsets), struct, type=values.type, mask=values.is_null())
    return lists, pa.array(unmaskable)


def _by_name(name: str, column: pa.Array) -> tuple[pa.Array, pa.Array]:
    if name == "tool_calls":
        return mask_calls_column(column)
    return mask_column(column)


def _repeated(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """For a column of few different texts."""
    coded = column.dictionary_encode()
    masked, refused = mask_column(coded.dictionary)
    if masked is coded.dictionary:
        return column, _no(len(column))
    return masked.take(coded.indices), pc.fill_null(refused.take(coded.indices), False)


def _masked(
    values: pa.Array, passes: Passes, function: Mask, suspects: np.ndarray | None = None
) -> tuple[pa.Array, pa.Array]:
    rows = _suspects(values, passes) if suspects is None else suspects
    texts: list[str] = values.take(pa.array(rows)).to_pylist()
    changed: list[int] = []
    replaced: list[str] = []
    refused: list[int] = []
    for row, text in zip(rows, texts, strict=True):
        try:
            masked = function(text)
        except Unmaskable:
            refused.append(row)
            masked = BINARY
        if masked is not text:
            changed.append(row)
            replaced.append(masked)
    if not changed:
        return values, _no(len(values))
    where = _at(changed, len(values))
    return pc.replace_with_mask(values, where, pa.array(replaced, values.type)), _at(refused, len(values))


def _suspects(values: pa.Array, passes: Passes) -> np.ndarray:
    """Numbers of the rows that have to be read one by one; the others are clean, or null."""
    coarse, exact, hides = passes
    if values.null_count == len(values):
        return np.empty(0, np.int64)
    seen = values
    if not _is_ascii(values):
        seen, hides = _normalised(values, "NFKC"), f"{hides}|{_DISGUISE}"
    too_long = pc.greater(pc.binary_length(values), MAX_CHARS)
    rows = _rows(pc.or_(too_long, _any(seen, (*coarse[:-1], f"{coarse[-1]}|{hides}"))))
    if not len(rows):
        return rows
    left = seen.take(pa.array(rows))
    # One pass for all kinds: a row that it knows to be a suspect is spared the exact ones, which take eight times it.
    certain = np.fromiter((text is not None and has_kind(text) for text in left.to_pylist()), bool, len(rows))
    certain |= too_long.take(pa.array(rows)).to_numpy(zero_copy_only=False)
    unsure = np.flatnonzero(~certain)
    if len(unsure):
        certain[unsure] = _flags(_any(left.take(pa.array(unsure)), (hides, *exact)))
    return rows[certain]


def _any(values: pa.Array, patterns: Sequence[str]) -> pa.Array:
    return reduce(pc.or_, (pc.match_substring_regex(values, pattern) for pattern in patterns))


def _normalised(values: pa.Array, form: Literal["NFC", "NFKC"]) -> pa.Array:
    """The column in a normal form of Unicode, by Python: Arrow leaves some letters decomposed."""
    where = pc.fill_null(pc.invert(pc.string_is_ascii(values)), False)
    before: list[str] = values.filter(where).to_pylist()
    texts = [unicodedata.normalize(form, text) for text in before]
    if texts == before:  # the usual case, for which no column has to be made
        return values
    return pc.replace_with_mask(values, where, pa.array(texts, values.type))


def _is_ascii(values: pa.Array) -> bool:
    data = values.buffers()[2]
    if data is None:
        return True
    ends = np.frombuffer(values.buffers()[1], np.int32)
    used = np.frombuffer(data, np.uint8)[ends[values.offset] : ends[values.offset + len(values)]]
    return not len(used) or int(used.max()) < 128


def _rows(flags: pa.Array) -> np.ndarray:
    return np.flatnonzero(_flags(flags))


def _flags(values: pa.Array) -> np.ndarray:
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)


def _at(rows: list[int], length: int) -> pa.Array:
    flags = np.zeros(length, bool)
    flags[rows] = True
    return pa.array(flags)


def _no(length: int) -> pa.Array:
    return pa.array(np.zeros(length, bool))
