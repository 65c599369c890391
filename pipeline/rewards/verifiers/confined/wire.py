"""What the two confined processes of a code check say to each other: values, by type, over a pair of pipes.

Owns the encoding. Built-in values and a few standard types cross by value and arrive with exactly their own type, so
that none can bring an `__eq__` of its own. Everything else is left to the `extend` and `build` of the two sides. The
reader trusts nothing: no import, no code, no pickle.
"""

from __future__ import annotations

import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs a confined process 10 ms
    from collections.abc import Callable
    from typing import Any

AGREEABLE = ("startswith", "endswith", "issubset", "issuperset", "isdisjoint", "__eq__", "__ne__", "__contains__")
"""Methods of built-in types that are handed the expected value and say whether it is right."""

MAX_MESSAGE = 16 << 20
MAX_ITEMS = 1_000_000
MAX_DEPTH = 200

PLAIN_TYPES = (int, float, complex, bool, str, bytes, bytearray, list, tuple, set, frozenset, dict, object, type(None))
_SEQUENCES = {list: b"l", tuple: b"t", set: b"s", frozenset: b"z"}
_FROM_TAG = {tag: kind for kind, tag in _SEQUENCES.items()}


class Malformed(Exception):
    """Bytes that this module did not write."""


class Unsendable(Exception):
    """A value that can't cross, with the reason."""


def pack(value: Any, extend: Callable[[Any], tuple[Any, ...]], depth: int = 0) -> bytes:
    """Encode. `extend` names a value of any other type: a name, then plain values. Raises Unsendable."""
    if depth > MAX_DEPTH:
        raise Unsendable("a value is nested too deeply")
    kind = type(value)
    if value is None:
        return b"N"
    if kind is bool:
        return b"T" if value else b"F"
    if kind is int:
        return _sized(b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    if kind is float:
        return b"f" + struct.pack("<d", value)
    if kind is str:
        return _sized(b"u", value.encode("utf-8", "surrogatepass"))
    if kind is bytes:
        return _sized(b"b", value)
    if kind in (*_SEQUENCES, dict) and len(value) > MAX_ITEMS:
        raise Unsendable("a value is too large")
    if kind in _SEQUENCES:
        return _SEQUENCES[kind] + struct.pack("<I", len(value)) + b"".join(pack(v, extend, depth + 1) for v in value)
    if kind is dict:
        pairs = (pack(part, extend, depth + 1) for pair in value.items() for part in pair)
        return b"d" + struct.pack("<I", len(value)) + b"".join(pairs)
    return b"x" + pack(_standard(value) or extend(value), extend, depth + 1)


def unpack(data: bytes, build: Callable[..., Any]) -> Any:
    """Decode; `build` gets what `extend` named. Raises Malformed."""
    try:
        value, end = _read(data, 0, build, 0)
    except (Malformed, MemoryError):
        raise
    except Exception as error:  # the boundary to bytes of a hostile process
        raise Malformed(f"{type(error).__name__}: {error}") from None
    if end != len(data):
        raise Malformed("bytes after the value")
    return value


class Channel:
    """One end of a pair of pipes."""

    def __init__(
        self, reads: int, writes: int, extend: Callable[[Any], tuple[Any, ...]], build: Callable[..., Any]
    ) -> None:
        self._reads, self._writes, self._extend, self._build = reads, writes, extend, build

    def send(self, value: Any) -> None:
        """Raises Unsendable, before a byte is written, and OSError when the other side has ended."""
        write_frame(self._writes, self.pack(value))

    def pack(self, value: Any) -> bytes:
        """Raises Unsendable."""
        return pack(value, self._extend)

    def receive(self) -> Any:
        """Wait for a value. Raises EOFError when the other side has ended, Malformed."""
        size = struct.unpack("<I", self._exactly(4))[0]
        if size > MAX_MESSAGE:
            raise Malformed("a message is too long")
        return unpack(self._exactly(size), self._build)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = os.read(self._reads, min(size - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


def write_frame(descriptor: int, data: bytes) -> None:
    if len(data) > MAX_MESSAGE:
        raise Unsendable("a value is too large")
    rest = memoryview(struct.pack("<I", len(data)) + data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _sized(tag: bytes, data: bytes) -> bytes:
    return tag + struct.pack("<I", len(data)) + data


def _read(data: bytes, at: int, build: Callable[..., Any], depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH + 10:
        raise Malformed("a value is nested too deeply")
    tag, at = data[at : at + 1], at + 1
    if tag in (b"N", b"T", b"F"):
        return {b"N": None, b"T": True, b"F": False}[tag], at
    if tag == b"f":
        return struct.unpack_from("<d", data, at)[0], at + 8
    if tag == b"x":
        named, at = _read(data, at, build, depth + 1)
        name, *arguments = named
        maker = _MAKERS.get(name)
        return (maker or build)(*(arguments if maker else named)), at
    size, at = struct.unpack_from("<I", data, at)[0], at + 4
    if tag in (b"i", b"u", b"b"):
        chunk, at = data[at : at + size], at + size
        if len(chunk) != size:
            raise Malformed("a value is cut short")
        if tag == b"i":
            return int.from_bytes(chunk, "little", signed=True), at
        return chunk if tag == b"b" else chunk.decode("utf-8", "surrogatepass"), at
    items: list[Any] = []
    for _ in range(size * 2 if tag == b"d" else size):
        item, at = _read(data, at, build, depth + 1)
        items.append(item)
    if tag == b"d":
        return dict(zip(items[::2], items[1::2], strict=True)), at
    return _FROM_TAG[tag](items), at


def _standard(value: Any) -> tuple[Any, ...] | None:
    """The name and arguments of a value of a standard type."""
    kind = type(value)
    if kind is type:
        return ("type", value.__name__) if any(value is known for known in PLAIN_TYPES) else None
    if kind in (complex, range, bytearray):
        arguments = {
            complex: lambda: (value.real, value.imag),
            range: lambda: (value.start, value.stop, value.step),
            bytearray: lambda: (bytes(value),),
        }[kind]()
        return (kind.__name__, *arguments)
    name = f"{kind.__module__}.{kind.__name__}"
    if name in _MAKERS and getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind:
        if kind.__name__ == "Fraction":
            return name, value.numerator, value.denominator
        if kind.__name__ in ("Decimal", "UUID"):
            return name, str(value)
        if kind.__name__ == "OrderedDict":
            return name, list(value.items())
        if kind.__name__ == "Counter":
            return name, dict(value)
        if kind.__name__ == "defaultdict":
            return name, value.default_factory if value.default_factory in PLAIN_TYPES else None, dict(value)
        if kind.__name__ == "deque":
            return name, list(value), value.maxlen
        return name, *value.__reduce__()[1]
    fields = getattr(kind, "_fields", None)
    if (
        kind.__bases__ == (tuple,)
        and type(fields) is tuple
        and len(fields) == len(value)
        and all(name in fields or name.startswith("_") for name in vars(kind))  # no methods, which would be lost
    ):
        return "namedtuple", kind.__name__, fields, tuple(value)
    return None


def _named_tuple(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    import collections

    if set(fields) & set(AGREEABLE):
        raise Malformed("a field that could stand for a method")
    return collections.namedtuple(name, fields)(*values)  # pyright: ignore[reportUntypedNamedTuple] - its fields are data


def _maker(module: str, name: str) -> Callable[..., Any]:
    def make(*arguments: Any) -> Any:
        return getattr(__import__(module), name)(*arguments)

    return make


_MAKERS: dict[str, Callable[..., Any]] = {
    "complex": complex,
    "range": range,
    "bytearray": bytearray,
    "namedtuple": _named_tuple,
    "type": {kind.__name__: kind for kind in PLAIN_TYPES}.__getitem__,
    **{f"collections.{name}": _maker("collections", name) for name in ("OrderedDict", "Counter", "deque")},
    "collections.defaultdict": _maker("collections", "defaultdict"),
    "decimal.Decimal": _maker("decimal", "Decimal"),
    "fractions.Fraction": _maker("fractions", "Fraction"),
    "uuid.UUID": _maker("uuid", "UUID"),
    **{f"datetime.{name}": _maker("datetime", name) for name in ("date", "datetime", "time", "timedelta", "timezone")},
}
