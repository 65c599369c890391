"""Values between the two confined processes of a code check: one JSON text a line, over a pair of pipes. They arrive
with exactly their own built-in type, so that none brings an `__eq__` of its own. No code, no pickle."""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs a confined process 10 ms
    from typing import Any

sys.set_int_max_str_digits(0)

MAX_LINE = 16 << 20
MAX_DEPTH = 100
MAX_ITEMS = 1_000_000
_KINDS = {kind.__name__: kind for kind in (list, tuple, set, frozenset, dict)}


class Malformed(Exception):
    """A line that this module did not write."""


class Unsendable(Exception):
    """A value that can't cross, with the reason."""


def encode(value: Any, depth: int = 0) -> Any:
    """The value as JSON has it: containers with the name of their type. Raises Unsendable."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if depth > MAX_DEPTH:
        raise Unsendable("a value is nested too deeply")
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if isinstance(value, dict) and kind.__module__ in ("builtins", "collections"):
        kind, value = dict, dict.items(value)
    if kind not in _KINDS.values():
        raise Unsendable(f"a {kind.__name__}, which can't be sent")
    if len(value) > MAX_ITEMS:
        raise Unsendable("a value is too large")
    return {kind.__name__: [encode(each, depth + 1) for each in value]}


def _decode(held: Any) -> Any:
    if not isinstance(held, dict):
        return held
    ((name, content),) = held.items()
    if name == "bytes":
        return bytes.fromhex(content)
    return complex(*content) if name == "complex" else _KINDS[name](map(_decode, content))


class Channel:
    """One end of a pair of pipes."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reader, self._writes = open(reads, "rb"), writes  # noqa: SIM115

    def send(self, message: Any) -> None:
        """Raises Unsendable, before a byte is written, and OSError when the other side has ended."""
        data = json.dumps(encode(message)).encode() + b"\n"
        if len(data) > MAX_LINE:
            raise Unsendable("a value is too large")
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._writes, rest) :]

    def receive(self) -> Any:
        """Wait for a message. Raises EOFError when the other side has ended, Malformed."""
        line = self._reader.readline(MAX_LINE + 1)
        if not line:
            raise EOFError
        try:
            return _decode(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Malformed(str(error)) from None


def read_source() -> bytes:
    """What the process was given on its standard input."""
    source = b""
    while part := os.read(0, 1 << 20):
        source += part
    return source
