"""Work that dies at every write, one attempt after the other, each one write later than the one before."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


class Crash(BaseException):
    """No handler of ours or of a library's catches it, as none outlives a kill."""


def crashed_at_every_write(
    work: Callable[[], object],
    writes: Iterable[tuple[Any, str]],
    after: bool,
    look: Callable[[int], None] | None = None,
) -> int:
    """Do the work until it comes through; how often it died. `after`: the write is done first. `look`: at what each
    attempt left, with the number of crashes so far."""
    crashes = calls = 0

    def frail(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == crashes + 1 and not after:
                raise Crash
            result = real(*args, **kwargs)
            if calls == crashes + 1:
                raise Crash
            return result

        return call

    while True:
        calls, is_through = 0, False
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in writes:
                patch.setattr(owner, name, frail(getattr(owner, name)))
            try:
                work()
                is_through = True
            except Crash:
                crashes += 1
        if look is not None:
            look(crashes)
        if is_through:
            return crashes
