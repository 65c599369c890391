"""What stands in the tests for an object of the completion: every operation on it is carried out where it lives.

The rule. An object answers for itself, but it is never shown what it is held against. An operator with a value of the
tests on its other side (`==`, `<`, `-`, `in` ...) could be answered to please, so it is refused and the check abstains;
the same goes for the few methods of built-in types that take the expected value. Between two of the completion's own
objects operators are allowed: a test that compares those has chosen to believe the completion.
"""

from __future__ import annotations

from pipeline.rewards.verifiers.confined.wire import AGREEABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, Protocol

    class Asks(Protocol):
        def do(self, operation: str, *arguments: Any) -> Any: ...
        def call(self, function: Handle, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any: ...
        def refuse(self, reason: str) -> NoReturn: ...


BINARY = "lt le gt ge add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift"
ASKED = (
    "getitem setitem delitem len iter next reversed hash dir str repr bool int float complex index round abs neg pos"
)
UNSUPPORTED = "copy deepcopy reduce reduce_ex mro_entries await aiter anext iadd isub imul ior iand ixor"


class Handle:
    # Names that no attribute of a completion's object has; `free`: found by its name, so no part of another's state.
    __slots__ = ("__handle_examiner__", "__handle_free__", "__handle_number__")
    __doc__ = None

    __handle_examiner__: Asks
    __handle_number__: int
    __handle_free__: bool

    def __init__(self, examiner: Asks, number: int) -> None:
        object.__setattr__(self, "__handle_examiner__", examiner)
        object.__setattr__(self, "__handle_number__", number)
        object.__setattr__(self, "__handle_free__", False)

    def __getattr__(self, name: str) -> Any:
        if name in AGREEABLE:
            self.__handle_examiner__.refuse(f"the tests ask an object of the completion's own class for `{name}`")
        return self.__handle_examiner__.do("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__handle_examiner__.do("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__handle_examiner__.do("delattr", self, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.__handle_examiner__.call(self, arguments, named)

    def __eq__(self, other: object) -> Any:
        if type(other) is Handle:
            return self.__handle_examiner__.do("eq", self, other)
        if self.__handle_examiner__.do("compares", self) is True:
            _refuse(self, "==", other)
        return NotImplemented

    def __ne__(self, other: object) -> Any:
        if type(other) is Handle:
            return self.__handle_examiner__.do("ne", self, other)
        return NotImplemented if self.__eq__(other) is NotImplemented else True

    def __contains__(self, item: Any) -> Any:
        if type(item) is Handle:
            return self.__handle_examiner__.do("contains", self, item)
        return _refuse(self, "in", item)

    def __hash__(self) -> int:
        return self.__handle_examiner__.do("hash", self)

    def __format__(self, specification: str) -> str:
        return self.__handle_examiner__.do("format", self, specification)

    def __instancecheck__(self, other: Any) -> Any:
        return self.__handle_examiner__.do("isinstance", other, self)

    def __subclasscheck__(self, other: Any) -> Any:
        return self.__handle_examiner__.do("issubclass", other, self)

    def __enter__(self) -> Any:
        return self.__handle_examiner__.do("enter", self)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        if error is not None:
            self.__handle_examiner__.refuse("the tests raise inside a context manager of the completion")
        return self.__handle_examiner__.do("leave", self)


def _refuse(handle: Handle, operator: str, other: Any) -> NoReturn:
    kind = type(other).__name__
    handle.__handle_examiner__.refuse(f"`{operator}` between an object of the completion's own class and a {kind}")


def _asked(name: str) -> Callable[..., Any]:
    def method(self: Handle, *arguments: Any) -> Any:
        return self.__handle_examiner__.do(name, self, *arguments)

    return method


def _binary(name: str) -> Callable[..., Any]:
    def method(self: Handle, other: Any) -> Any:
        if type(other) is Handle:
            return self.__handle_examiner__.do(name, self, other)
        return _refuse(self, name, other)

    return method


def _unsupported(name: str) -> Callable[..., Any]:
    def method(self: Handle, *_: Any) -> Any:
        self.__handle_examiner__.refuse(f"`{name}` of an object of the completion")

    return method


for _name in ASKED.split():
    setattr(Handle, f"__{_name}__", _asked(_name))
for _name in BINARY.split():
    _bare = _name.rstrip("_")
    setattr(Handle, f"__{_bare}__", _binary(_name))
    if _name not in ("lt", "le", "gt", "ge"):
        setattr(Handle, f"__r{_bare}__", _binary(_name))
for _name in UNSUPPORTED.split():
    setattr(Handle, f"__{_name}__", _unsupported(_name))
