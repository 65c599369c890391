"""Errors of MLflow's client, as one line that says what to do. "No", "not there" and "no answer" are different answers:
only the last one is worth asking again."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from pipeline.core.redaction import MLFLOW as LOGIN
from pipeline.core.redaction import redacted

OLDEST = (2, 12)
"""Version of a server that was tried."""
TIMEOUTS_S = (2.0, 10.0)
"""To connect, and to answer."""
NO_ANSWER, PAGE, OLD = 0, 1, 2
ADVICE = {
    NO_ANSWER: "gives no answer: make it reachable, and launch the same again",
    PAGE: f"answers with a page, not as MLflow: correct the address, or set {LOGIN}",
    OLD: "is too old: upgrade it, from {}.{} on it works".format(*OLDEST),
    401: f"wants a login, or another one: set {LOGIN}",
    403: f"does not let this login do that: give it the right to edit, or set {LOGIN}",
    404: "is no MLflow, at least not at that path: correct the address",
    413: "has something in front that cuts requests: raise its limit (nginx: client_max_body_size), or start MLflow "
    "with --no-serve-artifacts: files then go to their store directly",
    500: "has an error of its own, which its log explains",
}
"""By HTTP status; the first three are ours."""
_STATUS = re.compile(r"(?:error code |too many |^)(\d{3})\b")
_VERSION = re.compile(r"(\d+)\.(\d+)\S*")


def reach(address: str) -> None:
    """Ask a server for its version, once; its client repeats for minutes. A database is not asked.

    Raises ConnectionError where there is no answer; ValueError where the server refuses the login, or is too old."""
    if not address.startswith("http"):
        return
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    options: dict[str, Any] = {"max_retries": 0, "timeout": TIMEOUTS_S, "raise_on_status": False}
    try:
        answer: Any = http_request(get_default_host_creds(address), "/version", "GET", **options)
    except Exception as error:  # boundary: MLflow and requests
        raise _in_words(str(error), address, NO_ANSWER) from error
    if answer.status_code == 401 or answer.status_code >= 500:
        raise _in_words(answer.text, address, answer.status_code)
    if (found := _VERSION.match(answer.text)) and (int(found[1]), int(found[2])) < OLDEST:
        raise _in_words(f"version {found[0]}", address, OLD)


@contextmanager
def mlflow_answers(*addresses: str) -> Generator[None]:
    """Raises ConnectionError where MLflow gives no answer, and ValueError where it answers with an error."""
    try:
        yield
    except Exception as error:  # boundary: MLflow; what is not its own goes on
        from mlflow.exceptions import MlflowException
        from requests import HTTPError, RequestException

        if not isinstance(error, MlflowException | HTTPError):
            raise
        for address in dict.fromkeys(addresses):
            reach(address)
        text, status = str(error), NO_ANSWER
        if found := _STATUS.search(text):
            status = int(found[1])
        elif isinstance(error, MlflowException) and not isinstance(error.__context__, RequestException):
            absent = error.error_code == "RESOURCE_DOES_NOT_EXIST"  # the word of an MLflow
            status = PAGE if "valid JSON format" in text else 400 if absent else error.get_http_status_code()
        if sent := getattr(error.request, "headers", {}).get("Content-Length") if isinstance(error, HTTPError) else "":
            text = f"{int(sent) / 1e6:,.1f} MB: {text}"
        raise _in_words(text, " and ".join(dict.fromkeys(addresses)), status) from error


def _in_words(text: str, address: str, status: int) -> Exception:
    reason = " ".join(re.sub(r"<[^>]*>", " ", text).split()).rpartition("Caused by ")[2][:240]
    unanswered = status in (NO_ANSWER, 429) or status >= 500
    advice = ADVICE.get(status, ADVICE[NO_ANSWER] if unanswered else "refuses")
    return (ConnectionError if unanswered else ValueError)(redacted(f"MLflow at {address} {advice} ({reason})."))
