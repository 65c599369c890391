"""A disk that fails once: at the n-th file that is synced, renamed or linked, as a full or a broken one does."""

import os
from collections.abc import Callable
from typing import Any

import pytest

CALLS = ("fsync", "replace", "rename", "link")


def failed_at_every_write(
    prepare: Callable[[], Callable[[], Any]], number: int, every: int = 1
) -> list[tuple[str, Any]]:
    """For each n: `prepare` a place of its own, let the work that it returns meet the error `number` (errno), then do
    it again without one. Each time: what the failing work raised ("" where it raised nothing), and what the second one
    returned. The last of them met no error."""
    results: list[tuple[str, Any]] = []
    at = 1
    while True:
        work, raised = prepare(), ""
        with pytest.MonkeyPatch.context() as patch:
            left = at

            def failing(real: Any) -> Any:
                def call(*args: Any, **kwargs: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left == 0:
                        raise OSError(number, os.strerror(number))
                    return real(*args, **kwargs)

                return call

            for name in CALLS:
                patch.setattr(os, name, failing(getattr(os, name)))
            try:
                work()
            except (OSError, ValueError) as error:
                raised = str(error)
        results.append((raised, work()))
        if left > 0:
            return results
        at += every
