"""Parameters of a test of which one keeps the promise in every run, and the others are its variants."""

from collections.abc import Iterable
from typing import Any

import pytest


def one_and_variants(values: Iterable[Any], *kept: Any) -> list[Any]:
    """The values as parameters: all but `kept`, or but the first, carry the mark `variant`. A tuple is several."""
    listed = list(values)
    return [value if value in (kept or listed[:1]) else _variant(value) for value in listed]


def _variant(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.variant)
