"""Hides secrets in texts that are shown or kept: errors, logs, events. Secret are values of the environment, by the
names of their variables, and what looks like a key, a password or a token."""

import os
import re
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast
from urllib.parse import quote, unquote, urlsplit

HIDDEN = "***"
SHORTEST = 8
"""Characters of a variable's value from which it counts as a secret."""
_SECRET_NAME = re.compile(
    r"(?i)(?:^|_|^PG)(?:(?<!ACCESS_)KEY|SECRET(?:_ACCESS_KEY)?|TOKEN|PASS(?:WORD|WD|PHRASE)?|CREDENTIALS?)$"
)
_ADDRESS_NAME = re.compile(r"(?i)_UR[IL]$")
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
    """Hide the environment's secrets in this process's output, and in its errors also what looks like a secret."""
    if not isinstance(sys.stdout, _Guarded):
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
