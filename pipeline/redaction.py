"""Secrets out of texts that people are shown: errors, logs, notices.

Owns what looks like a secret in a text of unknown origin. Refuses to be a reason to put secrets there: they belong into
the environment. The personal-data gate of the traces stage has kinds of its own, and masks what is kept.
"""

from __future__ import annotations

import re

HIDDEN = "***"

_USER_INFO = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_NAMED = re.compile(
    r"""(?ix)
    ( (?<![a-z]) (?:[a-z]+[_-])*?
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
    """The text with `***` for what looks like a secret.

    That is: the user information of a URL, the value behind a name such as `api_key`, `password` or `token`, a token of
    a known form (OpenAI, GitHub, GitLab, Hugging Face, AWS, Slack, Google, JWT), and what follows `Bearer`.
    """
    text = _USER_INFO.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\g<1>{HIDDEN}", text)
    text = _NAMED.sub(rf"\g<1>{HIDDEN}", text)
    return _SHAPES.sub(HIDDEN, text)
