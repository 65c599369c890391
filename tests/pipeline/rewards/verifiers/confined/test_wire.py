from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.rewards.verifiers.confined.wire import MAX_ITEMS, Malformed, Unsendable, pack, unpack

HASHABLE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.fractions() | st.decimals(allow_nan=False)
    | st.dates() | st.timedeltas(),
    lambda parts: st.frozensets(parts, max_size=4) | st.lists(parts, max_size=4).map(tuple),
    max_leaves=8,
)  # fmt: skip
VALUES = st.recursive(
    HASHABLE | st.binary().map(bytearray) | st.sets(HASHABLE, max_size=4),
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(HASHABLE, parts, max_size=4),
    max_leaves=12,
)


def refuse(value: Any) -> tuple[Any, ...]:
    raise Unsendable(type(value).__name__)


def build(*_: Any) -> Any:
    raise Malformed("nothing is built here")


def shape(value: Any) -> Any:
    """The types of a value, all the way down."""
    if isinstance(value, dict):
        return dict, [(shape(key), shape(item)) for key, item in value.items()]
    return (type(value), [shape(item) for item in value]) if isinstance(value, (list, tuple)) else type(value)


@pytest.mark.slow
@given(VALUES)
def test_a_value_arrives_as_it_was_sent(value: Any) -> None:
    arrived = unpack(pack(value, refuse), build)
    assert arrived == value
    assert shape(arrived) == shape(value)


@given(VALUES, st.integers(0), st.binary(max_size=8))
def test_damaged_bytes_are_a_value_or_malformed(value: Any, at: int, damage: bytes) -> None:
    data = pack(value, refuse)
    at %= len(data)
    with contextlib.suppress(Malformed):
        unpack(data[:at] + damage + data[at + len(damage) :], build)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_malformed(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        unpack(data, build)


@pytest.mark.parametrize("data", [b"", b"?", b"l\xff\xff\xff\xff", b"l\x01\0\0\0" * 5000, b"NN", b"x" * 5000, b"xN"])
def test_hostile_bytes_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        unpack(data, build)


@pytest.mark.parametrize(
    "value", [object(), lambda: 0, [1, {2: {object()}}], [0] * (MAX_ITEMS + 1), type("A", (int,), {})(3)]
)
def test_what_cannot_cross_is_unsendable(value: Any) -> None:
    with pytest.raises(Unsendable):
        pack(value, refuse)


def test_a_value_that_contains_itself_is_unsendable() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(Unsendable):
        pack(value, refuse)
