"""The process that runs the completion: it answers calls of its functions, and decides nothing. The completion shares
its interpreter, so nothing is in here but the arguments of the calls: no test, no expected value."""

from __future__ import annotations

import io
import sys
import types

from .channel import Channel, Unsendable, encode, read_source
from .confinement import confine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MODULE = "completion"


def serve(source: bytes, channel: Channel) -> None:
    """Answer one request after the other, until the other side has gone."""
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module  # dataclasses and typing look there
    while True:
        request = channel.receive()
        sys.stdout = printed = io.StringIO()
        try:
            reply = _answer(request, source, module.__dict__)
        except BaseException as error:  # the boundary to the completion: whatever it raises is its answer
            reply = _raised(error)
        try:
            channel.send({**reply, "printed": printed.getvalue()[: 1 << 20]})
        except (Unsendable, MemoryError) as error:
            del reply
            channel.send({"unsendable": str(error) or "MemoryError"})


def _answer(request: Any, source: bytes, names: dict[str, Any]) -> dict[str, Any]:
    match request:
        case ["load"]:
            exec(compile(source, "<completion>", "exec", dont_inherit=True), names)
            return {}
        case ["name", name]:
            if name not in names:
                return {"missing": name}
            value = names[name]
            if type(value) is types.ModuleType:
                return {"module": value.__name__}
            if isinstance(value, type):
                return {"class": name}
            return {"call": name} if callable(value) else {"value": value}
        case ["call", name, given, by_name]:
            result = names[name](*given, **by_name)
            same = [at for at, each in enumerate(given) if each is result and type(each) in (list, dict, set)]
            return {"value": result, "arguments": given, "same": same}
        case _:
            raise AssertionError(request)


def _raised(error: BaseException) -> dict[str, Any]:
    """The exception's nearest class that is the standard library's, its arguments and what it says."""
    standard = (kind for kind in type(error).__mro__ if kind.__module__.split(".")[0] in sys.stdlib_module_names)
    known = next(kind for kind in standard if getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind)
    arguments, text = list(error.args), f"{type(error).__name__}: {error}"[:500]
    try:
        encode(arguments)
    except Unsendable:
        arguments = [str(error)]
    return {"raised": [known.__module__, known.__name__], "arguments": arguments, "text": text}


def compiles(source: bytes) -> bool:
    try:
        compile(source, "<completion>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
        return False
    return True


def main(limits: tuple[int, int, int, bool], fenced: bool, reads: int, writes: int) -> None:
    """The entry point. The completion's source is on standard input."""
    channel, source = Channel(reads, writes), read_source()
    try:
        confine(*limits)
    except OSError as error:
        return channel.send({"refused": str(error)})
    channel.send({"ready": fenced or compiles(source)})
    serve(source, channel)
