"""The name under which a slot's answers, spans and metrics carry its model: `<model>@<first 12 of the digest>`.

A server is given two names, this one and the plain one that callers ask for; whatever it reports carries the first.
"""

from __future__ import annotations

import re

HEAD = 12
"""Hexadecimal digits of a digest that a name carries."""
_NAME = re.compile(rf"(?P<model>[^@\s]+)@(?P<head>[0-9a-f]{{{HEAD}}})")


def served_name(model_name: str, digest: str) -> str:
    """The first name of a server of that model."""
    return f"{model_name}@{digest[:HEAD]}"


def digest_head(name: str, model_name: str) -> str:
    """The digest's first 12 digits in a served name of that model; "" in any other text."""
    match = _NAME.fullmatch(name)
    return match["head"] if match is not None and match["model"] == model_name else ""
