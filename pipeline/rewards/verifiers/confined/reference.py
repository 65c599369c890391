"""The process that runs the tests. It calls the completion's functions in their process and gives the only verdict. The
rule. `correct`: the tests ran to their end and had used the completion. `wrong`: after such a use they raised.
`unparsable_gold`: the tests do not compile, or passed or raised without a use of the completion. `error`: the
completion needed what the sandbox withholds (memory, files, processes, other packages), or the tests need what JSON
does not carry, such as an object of the completion's own class; nobody knows then. Whatever the tests caught of
these, the first of them stands. `unittest.main()` ends the tests as it ends a program: by its exit code."""

from __future__ import annotations

import builtins
import json
import os
import symtable
import sys
import types

from .channel import Channel, Malformed, Unsendable, read_source
from .confinement import confine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

TESTS = "<tests>"
WITHHELD = (MemoryError, PermissionError, ModuleNotFoundError)
FLOW = (StopIteration, StopAsyncIteration, GeneratorExit)
"""What would end a loop of the tests, and the assertions in it, in silence."""


class Decided(BaseException):
    """The verdict stands; not for the tests to catch."""


class CompletionModule:
    """The completion's functions and values, as the tests see them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.verdict: tuple[str, str] | None = None
        self.raised: BaseException | None = None
        self.used = False
        self.missing: set[str] = set()
        self.classes: set[str] = set()

    def start(self) -> None:
        self._reply()
        self._ask("load")

    def bind(self, name: str, names: dict[str, Any]) -> None:
        """Put what the completion has under a name among the names of the tests."""
        match self._ask("name", name):
            case {"missing": _}:
                self.missing.add(name)
            case {"value": value}:
                names[name], self.used = value, True
            case {"module": module} if module == name and name in sys.stdlib_module_names:
                names[name] = __import__(name)
            case reply:
                names[name] = self._function(name)
                self.classes |= {name} if "class" in reply else set()

    def decide(self, outcome: str, reason: str) -> NoReturn:
        self.verdict = self.verdict or (outcome, reason)
        raise Decided

    def _function(self, name: str) -> Callable[..., Any]:
        def function(*arguments: Any, **named: Any) -> Any:
            self.used = True
            reply = self._ask("call", name, list(arguments), named)
            for given, left in zip(arguments, reply["arguments"], strict=True):
                _restore(given, left)
            return arguments[reply["same"][0]] if reply["same"] else reply["value"]

        function.__name__ = name
        return function

    def _ask(self, *request: Any) -> dict[str, Any]:
        if self.verdict:
            raise Decided
        try:
            self._channel.send(list(request))
        except Unsendable as error:
            self.decide("error", f"the tests pass {error}")
        except OSError:
            self.decide("ended", "")
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        try:
            reply = self._channel.receive()
        except (EOFError, OSError):
            self.decide("ended", "")
        except Malformed:
            reply = None
        match reply:
            case {"refused": reason}:
                self.decide("error", f"no sandbox: {reason}")
            case {"ready": False}:
                self.decide("no_answer", "")
            case {"unsendable": reason}:
                self.decide("error", str(reason))
            case {"raised": [str(module), str(name)], "arguments": list(arguments), "text": text}:
                print(reply.get("printed", ""), end="")
                # A class that these tests know: nothing is imported for the completion.
                kind = getattr(sys.modules.get(module), name, Exception) if module != "unittest.case" else None
                self.raised = _exception(kind, arguments, str(text))
                raise self.raised
            case dict():
                print(reply.get("printed", ""), end="")
                return reply
            case _:
                self.decide("wrong", "the completion broke into the channel")


def examine(tests: str, completion: CompletionModule) -> tuple[str, str]:
    """The outcome and a word on it."""
    try:
        code = compile(tests, TESTS, "exec", dont_inherit=True)
        wanted = free_names(tests)
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError) as error:
        return "unparsable_gold", f"the tests do not compile: {type(error).__name__}: {error}"
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    failure = None
    try:
        completion.start()
        for name in wanted:
            completion.bind(name, module.__dict__)
    except BaseException as error:
        return completion.verdict or _judged(error, completion, tests)
    try:
        exec(code, module.__dict__)
    except BaseException as error:  # the boundary to the tests: whatever they raise is a verdict
        failure = None if isinstance(error, SystemExit) and not error.code else error
    if completion.verdict:
        return completion.verdict
    if failure is None:
        return ("correct", "") if completion.used else ("unparsable_gold", "the tests pass without the completion")
    if isinstance(failure, NameError) and failure.name in completion.missing:
        return "wrong", _described(failure, tests)
    if completion.classes:
        return "error", f"the tests use a class of the completion: {', '.join(sorted(completion.classes))}"
    if not completion.used:
        return "unparsable_gold", f"the tests fail without the completion: {_described(failure, tests)}"
    return _judged(failure, completion, tests)


def free_names(tests: str) -> list[str]:
    """The names that the tests use and do not define. A built-in is one only where there is no other, so that a
    completion's own `all` or `abs` has no say in the tests."""
    top = symtable.symtable(tests, TESTS, "exec")
    bound = {each.get_name() for each in top.get_symbols() if each.is_assigned() or each.is_imported()}
    tables, free = [top], set[str]()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        free |= {each.get_name() for each in table.get_symbols() if each.is_referenced() and each.is_global()}
    free -= bound | {"__name__", "__file__"}
    others = {name for name in free if not hasattr(builtins, name)}
    return sorted(others or (free if len(free) == 1 else set()))


def _judged(failure: BaseException, completion: CompletionModule, tests: str) -> tuple[str, str]:
    withheld = isinstance(failure, MemoryError) or (failure is completion.raised and isinstance(failure, WITHHELD))
    return "error" if withheld else "wrong", _described(failure, tests)


def _exception(kind: Any, arguments: list[Any], text: str) -> BaseException:
    """An exception of the completion: a plain one for what would end the tests or skip them."""
    if not isinstance(kind, type) or not issubclass(kind, Exception) or issubclass(kind, FLOW):
        return RuntimeError(text)
    try:
        return kind(*arguments)
    except Exception:  # some classes want more than they keep
        error = kind.__new__(kind)
        error.args = tuple(arguments)
        return error


def _restore(given: Any, left: Any) -> None:
    """Give a container of the tests what the completion left in it."""
    if type(given) is not type(left):
        return
    if type(given) is list:
        given[:] = left
    elif type(given) in (dict, set):
        given.clear()
        given.update(left)


def _described(failure: BaseException, tests: str) -> str:
    """What was raised, and the line of the tests that did."""
    line, trace = 0, failure.__traceback__
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == TESTS else line
        trace = trace.tb_next
    source = tests.splitlines()[line - 1].strip() if line else ""
    raised = f"{type(failure).__name__}: {failure}".rstrip(": ")
    return f"{raised} | {source}" if source else raised


def main(limits: tuple[int, int, int, bool], reads: int, writes: int) -> None:
    """The entry point. The tests are on standard input, the verdict goes to standard output."""
    tests, sys.stdout = read_source(), open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    try:
        confine(*limits)
        outcome, answer = examine(tests.decode("utf-8", "surrogatepass"), CompletionModule(Channel(reads, writes)))
    except OSError as error:
        outcome, answer = "error", f"no sandbox: {error}"
    os.write(1, json.dumps([outcome, answer[:1000]]).encode())
    os._exit(0)
