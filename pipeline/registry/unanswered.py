"""Requests to MLflow that get no answer: its server was killed, or the line cut, before or after the work was done.

Owns making a thing once all the same, and the words for people. MLflow's own client repeats every request whose answer
was lost, also one that had made a run or a version: there would be two. Refuses to judge what a server did answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
ATTEMPTS = 3

T = TypeVar("T")


def made_once(find: Callable[[], T | None], make: Callable[[], T]) -> T:
    """What `find` finds, else what `make` makes. A request without an answer is not repeated: it is looked for what
    came of it, as soon as a server answers again, ATTEMPTS times at the most."""
    for attempt in range(1, ATTEMPTS + 1):
        there = find()
        if there is not None:
            return there
        try:
            with _asked_once():
                return make()
        except Exception as error:  # the boundary of MLflow's client, and of the HTTP library below it
            if attempt == ATTEMPTS or not is_unanswered(error):
                raise
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def answered(address: str) -> Generator[None]:
    """Raises ConnectionError with what to do where the server at this address gives no answer in the block."""
    try:
        yield
    except Exception as error:  # the boundary of MLflow's client, and of the HTTP library below it
        if not is_unanswered(error):
            raise
        raise ConnectionError(
            f"MLflow at {address} gives no answer ({type(error).__name__}). See to it that it runs, and launch the "
            "same again: what is on record stays, and nothing is put there twice."
        ) from error


def is_unanswered(error: Exception) -> bool:
    """MLflow raises the server's own answers as RestException, and for none the class above it, without a code."""
    from mlflow.exceptions import MlflowException, RestException
    from requests.exceptions import RequestException

    if isinstance(error, RequestException):
        return error.response is None
    return (
        isinstance(error, MlflowException)
        and not isinstance(error, RestException)
        and str(error).startswith("API request to ")
    )


@contextmanager
def _asked_once() -> Generator[None]:
    before = os.environ.get(RETRIES)
    os.environ[RETRIES] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[RETRIES]
        else:
            os.environ[RETRIES] = before
