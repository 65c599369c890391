"""The process that runs the tests. It asks the completion's process for values and gives the only verdict there is.

The rule. `correct`: the tests ran to their end and had used a name of the completion. `wrong`: after such a use they
raised. `unparsable_gold`: the tests do not compile, or passed or raised without a use of the completion, whatever it
was. `error`: the completion needed what the sandbox withholds (memory, files, processes, other packages), or the tests
do something that can't be carried over to another process; nobody knows then. Whatever the tests caught of these, the
first of them stands.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
import types

from pipeline.rewards.verifiers.confined.confinement import confine
from pipeline.rewards.verifiers.confined.handle import Handle
from pipeline.rewards.verifiers.confined.reference import TESTS, describe, imports, shadowed
from pipeline.rewards.verifiers.confined.wire import Channel, Malformed, Unsendable, pack, write_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

MAX_ITEMS = 100_000
WITHHELD = (MemoryError, PermissionError, ModuleNotFoundError)
LOOK_INTO_CODE = {"inspect", "mock", "unittest.mock", "dis"}


class Abandoned(BaseException):
    """The verdict is decided; not for the tests to catch."""


class Names(dict[str, "Any"]):
    """The tests' globals: their own names first, then the completion's, then the built-ins."""

    def __init__(self, examiner: Examiner, shadowed: set[str]) -> None:
        super().__init__(__name__="tests", __builtins__=builtins)
        self._examiner, self._shadowed = examiner, shadowed

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) and name not in self._shadowed:
            raise KeyError(name)
        return self._examiner.name(name)


class Examiner:
    """Runs the tests against the completion's process."""

    def __init__(self, reads: int, writes: int) -> None:
        self._channel = Channel(reads, writes, self._extend, self._build)
        self._handles: dict[int, Handle] = {}
        self._exceptions: dict[int, type[BaseException]] = {}
        self._lent: list[Any] = []
        self._borrowed: list[tuple[Any, bytes]] = []
        self._decided: tuple[str, str] | None = None
        self._theirs: BaseException | None = None
        self._asked = self._used = False

    def examine(self, tests: str) -> tuple[str, str]:
        """The outcome and a word on it."""
        try:
            tree = ast.parse(tests)
            code = compile(tree, TESTS, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError) as error:
            return "unparsable_gold", f"the tests do not compile: {type(error).__name__}: {error}"
        failure = None
        try:
            match self._receive():
                case ("ready",):
                    self._ask(("load",))
                case ("no_answer",):
                    return "no_answer", ""
                case ("refused", reason):
                    return "error", f"no sandbox: {reason}"
                case _:
                    raise AssertionError("the completion spoke before it was executed")
        except Abandoned:
            return self._decided or ("error", "")
        except BaseException as error:
            return self._judge(error, tests)
        try:
            exec(code, Names(self, shadowed(tree)))
        except BaseException as error:  # the boundary to the tests: whatever they raise is a verdict
            failure = error
        if isinstance(failure, SystemExit) and failure is not self._theirs and not failure.code:
            failure = None  # the tests' own way to say that they are done
        if any(self._pack(thing) != before for thing, before in self._borrowed):
            self._decide("error", "the tests change a container inside an object of the completion")
        if self._decided:
            if self._decided[0] == "error" and imports(tree) & LOOK_INTO_CODE:
                return "error", "the tests look into code, which is in another process"
            return self._decided
        if failure is None:
            return ("correct", "") if self._used else ("unparsable_gold", "the tests pass without the completion")
        if not self._asked:
            return "unparsable_gold", f"the tests fail without the completion: {describe(failure, tests)}"
        if imports(tree) & LOOK_INTO_CODE:
            return "error", "the tests look into code, which is in another process"
        return self._judge(failure, tests)

    def name(self, name: str) -> Any:
        """A global of the completion. Raises KeyError."""
        self._asked = True
        value = self._ask(("name", name), missing=KeyError(name))
        if type(value) is types.ModuleType:
            return value
        self._used = True
        if type(value) is Handle:
            object.__setattr__(value, "__handle_free__", True)
        return value

    def do(self, operation: str, *arguments: Any) -> Any:
        return self._track(self._ask(("do", operation, *arguments), stops=operation == "next"))

    def call(self, function: Handle, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        value = self._ask(("call", function, arguments, named), given=(*arguments, *named.values()))
        return value if function.__handle_free__ else self._track(value)

    def refuse(self, reason: str) -> NoReturn:
        self._decide("error", reason)
        raise Abandoned

    def _judge(self, failure: BaseException, tests: str) -> tuple[str, str]:
        if self._decided:
            return self._decided
        if isinstance(failure, MemoryError) or (failure is self._theirs and isinstance(failure, WITHHELD)):
            return "error", describe(failure, tests)
        return "wrong", describe(failure, tests)

    def _decide(self, outcome: str, reason: str) -> None:
        self._decided = self._decided or (outcome, reason)

    def _receive(self) -> Any:
        try:
            return self._channel.receive()
        except (EOFError, OSError):
            self._decide("ended", "the completion ended its process")
        except Malformed:
            self._decide("wrong", "the completion broke into the channel")
        raise Abandoned

    def _ask(
        self, request: tuple[Any, ...], *, given: tuple[Any, ...] = (), stops: bool = False, missing: Any = None
    ) -> Any:
        if self._decided:
            raise Abandoned
        self._send(request)
        while True:
            match self._receive():
                case ("call_back", int(number), tuple(arguments), dict(named)) if number < len(self._lent):
                    self._call_back(self._lent[number], arguments, named)
                case ("value", value, tuple(changed), str(printed), *same):
                    for at, new in changed:
                        _restore(given[at], new)
                    if printed:
                        print(printed, end="")
                    return given[same[0]] if same else value
                case ("raise", kind, tuple(arguments), dict(attributes), str(text)):
                    raise self._exception_of(kind, arguments, attributes, text, stops=stops)
                case ("missing",) if missing is not None:
                    raise missing
                case ("refuse", str(reason)):
                    self.refuse(reason)
                case _:
                    self._decide("wrong", "the completion broke into the channel")
                    raise Abandoned

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._channel.send(message)
        except Unsendable as error:
            self.refuse(str(error))
        except OSError:
            self._receive()  # it has ended; its last word may be there
            self._decide("ended", "the completion ended its process")
            raise Abandoned from None

    def _call_back(self, function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        try:
            reply = ("returned", function(*arguments, **named))
        except Exception as error:  # the boundary to a callable of the tests
            known = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
            reply = ("raised", known.__name__, str(error))
        self._send(reply)

    def _exception_of(
        self, kind: tuple[Any, ...], arguments: tuple[Any, ...], attributes: dict[str, Any], text: str, *, stops: bool
    ) -> BaseException:
        exception_class = self._exception_class(kind)
        if not stops and issubclass(exception_class, (StopIteration, StopAsyncIteration, GeneratorExit)):
            # it would end a loop of the tests, and the assertions in it, in silence
            exception_class, arguments = RuntimeError, (text,)
        try:
            error = exception_class(*arguments)
        except Exception:  # the boundary to exception classes of any library: some want more than they keep
            error = exception_class.__new__(exception_class)
            error.args = arguments or (text,)
        error.__dict__.update(attributes)
        self._theirs = error
        return error

    def _exception_class(self, kind: tuple[Any, ...]) -> type[BaseException]:
        if kind[0] == "standard" and kind[1].split(".")[0] in sys.stdlib_module_names:
            attribute = getattr(__import__(kind[1], fromlist=["_"]), kind[2], Exception)
            return attribute if isinstance(attribute, type) and issubclass(attribute, BaseException) else Exception
        if kind[1] not in self._exceptions:
            self._exceptions[kind[1]] = type(kind[2], (self._exception_class(kind[3]),), {})
        return self._exceptions[kind[1]]

    def _track(self, value: Any) -> Any:
        if type(value) in (list, dict, set, bytearray):
            self._borrowed.append((value, self._pack(value)))
        return value

    def _pack(self, value: Any) -> bytes:
        try:
            return pack(value, self._extend)
        except (Unsendable, Abandoned):
            return b""

    def _extend(self, value: Any) -> tuple[Any, ...]:
        if type(value) is Handle:
            return ("mine", value.__handle_number__)
        for number, kind in self._exceptions.items():
            if value is kind:
                return ("mine", number)
        if callable(value):
            if not any(value is known for known in self._lent):
                self._lent.append(value)
            return ("callable", next(at for at, known in enumerate(self._lent) if known is value))
        if hasattr(value, "__next__"):
            items = [item for item, _ in zip(value, range(MAX_ITEMS), strict=False)]
            if len(items) < MAX_ITEMS:
                return ("iterator", items)
        raise Unsendable(f"the tests hand over a {type(value).__name__}, which can't be sent")

    def _build(self, name: str, *arguments: Any) -> Any:
        if name == "object":
            return self._handles.setdefault(arguments[0], Handle(self, arguments[0]))
        if name == "exception":
            return self._exception_class(arguments[0])
        if name == "yours":
            return self._lent[arguments[0]]
        if name == "module" and arguments[0].split(".")[0] in sys.stdlib_module_names:
            return __import__(arguments[0], fromlist=["_"])
        raise Malformed(name)


def _restore(given: Any, new: Any) -> None:
    """Give a container of the tests what the completion left in it."""
    if type(given) is not type(new):
        return
    if type(given) in (list, bytearray):
        given[:] = new
    elif type(given) in (dict, set):
        given.clear()
        given.update(new)


def main(parent: int, cpu_s: int, memory_mb: int, reads: int, writes: int, verdict: int) -> None:
    """The entry point. The tests are on standard input."""
    tests = b""
    try:
        while part := os.read(0, 1 << 20):
            tests += part
        confine(parent, cpu_s, memory_mb)
        outcome, answer = Examiner(reads, writes).examine(tests.decode("utf-8", "surrogatepass"))
    except OSError as error:
        outcome, answer = "error", f"no sandbox: {error}"
    write_frame(verdict, pack((outcome, answer[:1000]), lambda _: ()))
    os._exit(0)
