"""Hides secrets in texts that are shown or kept: errors, logs, events. Secret are values of the environment, by the
names of their variables, and what looks like a key, a password or a token. Addresses with a secret are refused."""

import os
import re
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any, TextIO, cast
from urllib.parse import quote, unquote, urlsplit

HIDDEN = "***"
SHORTEST = 8
"""Characters of a variable's value from which it counts as a secret."""
_SECRET_NAME = re.compile(
    r"(?i)(?:^|_|^PG)(?:(?<!ACCESS_)KEY|SECRET(?:_ACCESS_KEY)?|TOKEN|PASS(?:WORD|WD|PHRASE)?|CREDENTIALS?)$"
)
_ADDRESS_NAME = re.compile(r"(?i)_(UR[IL]|PROXY)$")
_WHOLE_ADDRESS = "NOTIFY_URL"
"""A webhook's path is its key."""

_USER_INFO = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_NAMED = re.compile(
    r"""(?ix)
    ( (?<![a-z])
      (?: api[_-]?key | access[_-]?key(?:[_-]?id)? | (?:private|signing|deployment)[_-]?key
        | secret(?:[_-]?(?:access[_-]?)?key)?
        | pass(?:word|wd|phrase) | (?:auth|access|refresh|bearer|session|hf)?[_-]?token | credentials? )
      ['"]? \s* [=:] \s* )
    (?! (?:null|none|true|false|[\d._]+) (?![\w.-]) )
    (?: "[^"]*" | '[^']*' | [^\s,;&'"}\])]+ )
    """
)
_SHAPES = re.compile(
    r"(?<![\w-])(?:(?:sk|rk|pk)[-_][\w-]{6,}|gh[a-z]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_\w{16,}"
    r"|A[KS]IA[0-9A-Z]{12,}|xox[a-z]-[\w-]{8,}|eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]+)?|AIza[\w-]{30,})"
)
_BEARER = re.compile(r"(?i)(\b(?:bearer|basic) )[\w.~+/=-]{6,}")

MLFLOW = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
POSTGRES = "PGPASSWORD, or PGPASSFILE with the path of a passfile"
MYSQL = "read_default_file=PATH in its query: an option file of MySQL's client with the password"
LANGFUSE = "LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY"
AWS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
INSTEAD = {
    **dict.fromkeys(("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "MLFLOW_TRACES_URI"), MLFLOW),
    "TRACES_DATABASE_URL": POSTGRES,
    "LAKE_CATALOGUE_URI": "LAKE_CATALOGUE_TOKEN, or LAKE_CATALOGUE_CREDENTIAL with client:secret",
    **dict.fromkeys(("LANGFUSE_BASE_URL", "LANGFUSE_HOST"), LANGFUSE),
    "JUDGE_URL": "JUDGE_API_KEY",
    "SERVING_URL": "SERVING_API_KEY",
    **dict.fromkeys(("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"), AWS),
    "RAY_ADDRESS": "the cluster's own configuration",
}
"""Variable of an address to the variables for its secret."""


def redacted(text: str) -> str:
    """The text with `***` for each secret: those of the environment, user information of URLs, values behind names such
    as `api_key`, tokens of a known form, and what follows `Bearer`."""
    text = without_values(text)
    text = _USER_INFO.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\g<1>{HIDDEN}", text)
    text = _NAMED.sub(rf"\g<1>{HIDDEN}", text)
    return _SHAPES.sub(HIDDEN, text)


@contextmanager
def errors_redacted() -> Generator[None]:
    """Errors that leave the block quote no secret: an orchestrator shows what it stores of them."""
    try:
        yield
    except Exception as error:  # the boundary to the orchestrator's event log; it is raised again
        link: BaseException | None = error
        while link is not None:
            link.args = tuple(redacted(each) if isinstance(each, str) else each for each in link.args)
            if isinstance(description := getattr(link, "description", None), str):  # of dagster.Failure
                link.description = redacted(description)  # pyright: ignore[reportAttributeAccessIssue]
            link = link.__cause__ or link.__context__
        if (text := redacted(str(error))) != str(error):  # an error that makes its text of something else
            raise RuntimeError(text) from None
        raise


def without_values(text: str) -> str:
    """The text with `***` for each secret of the environment alone, so that JSON stays valid."""
    for secret in sorted(set(secrets(os.environ)), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def secrets(variables: Mapping[str, str]) -> Iterator[str]:
    """The secret values in these variables, also as quoted in URLs: by the variable's name, or in an address."""
    for name, value in variables.items():
        parts: list[str] = []
        if is_secret_name(name):
            parts = [value]
        elif _ADDRESS_NAME.search(name):
            with suppress(ValueError):  # an unclosed bracket
                address = urlsplit(value)
                parts = [address.password or "", *(text for _, text in named_secrets(address.query))]
        for part in parts:
            yield from {each for each in (part, quote(part, safe=""), unquote(part)) if len(each) >= SHORTEST}


def is_secret_name(name: str) -> bool:
    return name == _WHOLE_ADDRESS or bool(_SECRET_NAME.search(name))


def named_secrets(query: str) -> list[tuple[str, str]]:
    """The parts `name=value` of a query, or of libpq's words, with the name of a secret."""
    pairs = (word.partition("=") for word in re.split(r"[&;\s]+", query))
    return [(name, value.strip("'\"")) for name, sign, value in pairs if sign and _SECRET_NAME.search(name)]


def guard_output() -> None:
    """Hide the environment's secrets in this process's output, and in its errors also what looks like a secret. A file
    or a pipe gets UTF-8, as all that is written here; a terminal what it can show."""
    if not isinstance(sys.stdout, _Guarded):
        out = sys.stdout
        if isinstance(out, TextIOWrapper) and out.encoding.lower() != "utf-8" and not out.isatty():
            out.reconfigure(encoding="utf-8", errors="backslashreplace")
        sys.stdout = cast(TextIO, _Guarded(sys.stdout, shapes=False))
    if not isinstance(sys.stderr, _Guarded):
        sys.stderr = cast(TextIO, _Guarded(sys.stderr, shapes=True))


class _Guarded:
    def __init__(self, stream: TextIO, shapes: bool) -> None:
        self._stream, self._hide = stream, redacted if shapes else without_values

    def write(self, text: str) -> int:
        self._stream.write(self._hide(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def without_secret(variable: str, address: str) -> str:
    """The address, or ValueError that names the variables for the secret in it and shows no part of it."""
    if what := _secret_in(address):
        database = address.startswith(("postgres", "host=", "mysql", "mssql")) or "://" not in address
        instead = MYSQL if address.startswith("mysql") else POSTGRES if database else INSTEAD[variable]
        raise ValueError(
            f"{variable} has {what} in it, and an address is logged and listed with the processes. Take it out, and "
            f"set {instead}."
        )
    return address


def secret_faults(variables: Mapping[str, str]) -> list[str]:
    """One line for each variable whose address has a secret in it."""
    faults: list[str] = []
    for name in INSTEAD:
        try:
            without_secret(name, variables.get(name, ""))
        except ValueError as error:
            faults.append(str(error))
    return faults


def kept_secrets(tree: Any, field: str = "") -> Iterator[str]:
    """One line for each secret in a record: in an address, or by the name of a variable of a section `env`."""
    if isinstance(tree, Mapping):
        for name, below in cast(Mapping[str, Any], tree).items():
            inside = f"{field}.{name}" if field else name
            if field.endswith("env") and is_secret_name(name):
                yield f"{inside} is a secret by its name; a pod gets those from a Secret of its namespace"
            else:
                yield from kept_secrets(below, inside)
    elif isinstance(tree, (list, tuple)):
        for number, below in enumerate(cast(Sequence[Any], tree)):
            yield from kept_secrets(below, f"{field}.{number}")
    elif isinstance(tree, str) and "://" in tree and (what := _secret_in(tree)):
        yield f"{field} has {what} in its address; those belong into environment variables"


def _secret_in(address: str) -> str:
    try:
        parts = urlsplit(address)
        password, user = parts.password, parts.username
    except ValueError:  # an unclosed bracket: the scheme decides later, and nothing is shown
        return "a user or password" if "@" in address else ""
    if password:
        return "a password"
    if user and parts.scheme in ("http", "https", "s3", "s3a"):
        return "a user"
    if named := named_secrets(parts.query or ("" if parts.scheme else address)):
        return f"a {named[0][0]}"
    return ""
