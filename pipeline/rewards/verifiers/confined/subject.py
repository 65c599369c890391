"""The process that runs the completion. It answers what the examiner asks of it and decides nothing.

Nothing in here is protected from the completion, which shares this interpreter: there is nothing here worth having. No
test, no expected value and no token ever enters this process, only the arguments of the calls that the tests make.
"""

from __future__ import annotations

import io
import operator
import os
import sys
import types

from pipeline.rewards.verifiers.confined.confinement import confine
from pipeline.rewards.verifiers.confined.wire import Channel, Unsendable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MODULE = "completion"
MAX_PRINTED = 1 << 20

OPERATIONS: dict[str, Callable[..., Any]] = {
    **{function.__name__: function for function in (getattr, setattr, delattr, isinstance, issubclass, callable)},
    **{function.__name__: function for function in (len, iter, next, reversed, hash, dir, abs, round, format)},
    **{kind.__name__: kind for kind in (str, bool, int, float, complex)},
    "repr": repr,
    **{
        name: getattr(operator, name)
        for name in (
            *("getitem", "setitem", "delitem", "contains", "index", "neg", "pos", "invert"),
            *("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
            *("matmul", "and_", "or_", "xor", "lshift", "rshift"),
        )
    },
    "enter": lambda thing: type(thing).__enter__(thing),
    "leave": lambda thing: type(thing).__exit__(thing, None, None, None),
    "compares": lambda thing: type(thing).__eq__ is not object.__eq__,
}


class CapturedOutput(io.BytesIO):
    """Standard output, up to MAX_PRINTED bytes at a time."""

    def write(self, data: Any, /) -> int:
        room = MAX_PRINTED - self.tell()
        super().write(bytes(data)[: max(room, 0)])
        return len(data)


class RemoteCallable:
    """A callable of the tests: it can be called, and that is all."""

    def __init__(self, subject: Subject, number: int) -> None:
        self._subject, self.number = subject, number

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._subject.call_back(self.number, arguments, named)


class Subject:
    """Executes the completion and serves its names."""

    def __init__(self, source: bytes, reads: int, writes: int) -> None:
        self._source = source
        self._channel = Channel(reads, writes, self._extend, self._build)
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._printed = CapturedOutput()
        sys.stdout = io.TextIOWrapper(self._printed, encoding="utf-8", errors="replace", write_through=True)

    def start(self, refusal: str, *, fenced: bool) -> None:
        """Say whether there is something to examine; then serve until the examiner has gone."""
        if refusal:
            return self._channel.send(("refused", refusal))
        if not fenced and not self._compiles():
            return self._channel.send(("no_answer",))
        self._channel.send(("ready",))
        while True:
            self._serve(self._channel.receive())

    def call_back(self, number: int, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call a callable of the tests, and serve what it asks for in the meantime."""
        self._channel.send(("call_back", number, arguments, named))
        while True:
            match self._channel.receive():
                case ("returned", value):
                    return value
                case ("raised", name, message):
                    raise getattr(__import__("builtins"), name)(message)
                case request:
                    self._serve(request)

    def _compiles(self) -> bool:
        try:
            compile(self._source, "<completion>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
            return False
        return True

    def _serve(self, request: Any) -> None:
        try:
            reply = self._answer(request)
        except Unsendable as error:
            reply = ("refuse", str(error))
        except BaseException as error:  # the boundary to the completion: whatever it raises is its answer
            reply = self._raised(error)
        try:
            self._channel.send(reply)
        except (Unsendable, MemoryError) as error:
            del reply
            self._channel.send(("refuse", str(error) or "MemoryError"))

    def _answer(self, request: Any) -> tuple[Any, ...]:
        match request:
            case ("load",):
                module = types.ModuleType(MODULE)
                sys.modules[MODULE] = module  # dataclasses and typing look there
                exec(compile(self._source, "<completion>", "exec", dont_inherit=True), module.__dict__)
                return ("value", None, (), "")
            case ("name", name):
                names = sys.modules[MODULE].__dict__
                return ("value", names[name], (), "") if name in names else ("missing",)
            case ("call", function, arguments, named):
                result = function(*arguments, **named)
                given = (*arguments, *named.values())
                kind = type(result)
                if kind in (types.CoroutineType, types.AsyncGeneratorType):
                    raise Unsendable("a coroutine has to be awaited where it was made")
                changed = tuple(
                    (at, value) for at, value in enumerate(given) if type(value) in (list, dict, set, bytearray)
                )
                same = next((("same", at) for at, value in changed if value is result), None)
                return (
                    ("value", None, changed, self._take_printed(), same[1])
                    if same
                    else (("value", result, changed, self._take_printed()))
                )
            case ("do", operation, *arguments):
                return ("value", OPERATIONS[operation](*arguments), (), self._take_printed())
            case _:
                raise AssertionError(request)

    def _take_printed(self) -> str:
        text = self._printed.getvalue().decode("utf-8", "replace")
        self._printed.seek(0)
        self._printed.truncate()
        return text

    def _raised(self, error: BaseException) -> tuple[Any, ...]:
        text = f"{type(error).__name__}: {error}"[:500]
        try:
            kind = self._exception(type(error))
            reply = ("raise", kind, error.args, dict(vars(error)), text)
            self._channel.pack(reply)
        except Unsendable:
            reply = ("raise", self._exception(type(error)), (str(error),), {}, text)
        return reply

    def _number(self, thing: Any) -> int:
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self._objects)
            self._objects.append(thing)
        return self._numbers[id(thing)]

    def _exception(self, kind: Any) -> tuple[Any, ...]:
        """An exception class: by name from the standard library, else by number, name and base."""
        module = sys.modules.get(kind.__module__)
        if kind.__module__.split(".")[0] in sys.stdlib_module_names and getattr(module, kind.__name__, None) is kind:
            return ("standard", kind.__module__, kind.__name__)
        base = next(base for base in kind.__bases__ if issubclass(base, BaseException))
        return ("own", self._number(kind), kind.__name__, self._exception(base))

    def _extend(self, value: Any) -> tuple[Any, ...]:
        if type(value) is types.ModuleType:
            return ("module", value.__name__)
        if type(value) is RemoteCallable:
            return ("yours", value.number)
        if isinstance(value, type) and issubclass(value, BaseException):
            return ("exception", self._exception(value))
        return ("object", self._number(value))

    def _build(self, name: str, *arguments: Any) -> Any:
        if name == "mine":
            return self._objects[arguments[0]]
        if name == "callable":
            return RemoteCallable(self, arguments[0])
        assert name == "iterator", name
        return iter(arguments[0])


def main(parent: int, cpu_s: int, memory_mb: int, fenced: bool, reads: int, writes: int) -> None:
    """The entry point. The completion's source is on standard input."""
    refusal, source = "", b""
    try:
        while part := os.read(0, 1 << 20):
            source += part
        confine(parent, cpu_s, memory_mb)
    except OSError as error:
        refusal = str(error)
    Subject(source, reads, writes).start(refusal, fenced=fenced)
