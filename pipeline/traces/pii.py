"""Personal data in text: found by linear-time patterns (RE2), confirmed by checksums, replaced by placeholders.

Owns what counts as personal data and `mask`. Refuses to decide about a record: the gates do. Text in which nothing is
found stays exactly as it was; text with a finding is kept in its normalised form (NFKC, ASCII digits and dashes,
no zero-width characters), because that is where the finding is.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import re2

MAX_CHARS = 1_000_000
"""Longer text is not searched, so it cannot be called clean."""
MAX_ROUNDS = 8
MAX_DEPTH = 32
BINARY = "[BINARY]"

Spans = Callable[[str], Iterator[tuple[int, int]]]


class Unmaskable(ValueError):
    """Text that cannot be proved clean: the record that holds it is discarded."""


class Kind(NamedTuple):
    """A kind of personal data. Group 1 of `pattern` is a candidate; `confirm` gives the spans in it that are real."""

    name: str
    pattern: str
    confirm: Spans


def _whole(text: str) -> Iterator[tuple[int, int]]:
    yield 0, len(text)


def _ipv4(text: str) -> Iterator[tuple[int, int]]:
    if all(int(octet) <= 255 for octet in text.split(".")):
        yield 0, len(text)


def _ssn(text: str) -> Iterator[tuple[int, int]]:
    area, group, serial = text.split("-")
    if area not in ("000", "666") and area < "900" and group != "00" and serial != "0000":
        yield 0, len(text)


def _phone(text: str) -> Iterator[tuple[int, int]]:
    if 8 <= sum(c.isdigit() for c in text) <= 15:  # E.164 allows 15
        yield 0, len(text)


def _card(text: str) -> Iterator[tuple[int, int]]:
    """Runs of 13 to 19 digits that pass Luhn and start and end where a group of digits does."""
    at = [i for i, c in enumerate(text) if c.isdigit()]
    starts = [n for n, i in enumerate(at) if n == 0 or at[n - 1] < i - 1]
    ends = {n for n, i in enumerate(at) if n + 1 == len(at) or at[n + 1] > i + 1}
    after = 0
    for start in starts:
        if start < after or text[at[start]] not in "23456":  # the first digit of every card network
            continue
        for length in range(19, 12, -1):
            last = start + length - 1
            if last in ends and _luhn([int(text[i]) for i in at[start : last + 1]]):
                yield at[start], at[last] + 1
                after = last + 1
                break


def _luhn(digits: list[int]) -> bool:
    doubled = [d if n % 2 == 0 else d * 2 - 9 * (d > 4) for n, d in enumerate(reversed(digits))]
    return sum(doubled) % 10 == 0


def _iban(text: str) -> Iterator[tuple[int, int]]:
    """The longest prefix, cut at a space or the end, whose check digits are right: the next word may follow it."""
    cuts = [len(text), *(i for i in range(len(text) - 1, 0, -1) if text[i] == " ")]
    for cut in cuts:
        compact = text[:cut].replace(" ", "").upper()
        if 15 <= len(compact) <= 34 and int("".join(str(int(c, 36)) for c in compact[4:] + compact[:4])) % 97 == 1:
            yield 0, cut
            return


KINDS = (
    Kind("API_KEY", r"\b((?:sk|rk|pk)[-_][A-Za-z0-9][A-Za-z0-9_\-]{15,})", _whole),
    Kind("AWS_KEY", r"\b((?:AKIA|AGPA|AIDA|AROA|AIPA|ANPA|ANVA|ASIA)[A-Z0-9]{16})\b", _whole),
    Kind("EMAIL", r"([\pL\pN._%+\-]+@[\pL\pN\-]+(?:\.[\pL\pN\-]+)+)", _whole),
    Kind("IBAN", r"(?i)\b([A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?)\b", _iban),
    Kind("CARD", r"\b(\d(?:[ \-]?\d){12,})\b", _card),
    Kind("SSN", r"\b(\d{3}-\d{2}-\d{4})\b", _ssn),
    Kind("IP", r"\b(\d{1,3}(?:\.\d{1,3}){3})\b", _ipv4),
    # With a country code, in North American form, or with a trunk zero. A bare run of digits is a number.
    Kind("PHONE", r"(?:^|[^\d\w])(\+\d{1,3}[ .\-]?(?:\(\d{1,4}\)[ .\-]?)?\d{1,4}(?:[ .\-]?\d{2,4}){1,4})\b", _phone),
    Kind("PHONE", r"((?:\(\d{3}\) ?|\b\d{3}[ .\-])\d{3}[ .\-]\d{4})\b", _phone),
    Kind("PHONE", r"\b(0\d{2,4}[ \-]\d{3,4}[ \-]?\d{3,4})\b", _phone),
)
_COMPILED = [(kind, re2.compile(kind.pattern)) for kind in KINDS]
# One pass that clears most texts; a text that it lets through is searched kind by kind.
_ANY = re2.compile("|".join(f"(?:{kind.pattern})" for kind in KINDS))
_BLOB = re2.compile(r"data:[\w/+.\-]+;base64,|[A-Za-z0-9+/]{256}")
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))


def mask(text: str) -> str:
    """The text with personal data replaced by `[EMAIL]`, `[PHONE]` and so on; the same text when there is none.

    Raises Unmaskable for encoded binary, for text too long to search, and when masking does not come to rest.
    """
    if len(text) > MAX_CHARS:
        raise Unmaskable(f"{len(text)} characters; at most {MAX_CHARS} are searched. Split or drop the text.")
    current = normalised(text)
    if _BLOB.search(current):
        raise Unmaskable("The text holds encoded binary. Log such content by reference.")
    if not _ANY.search(current):
        return text
    for _ in range(MAX_ROUNDS):  # a placeholder can uncover a neighbour's word boundary
        masked = _masked_once(current)
        if masked == current:
            return text if masked == normalised(text) else masked
        current = masked
    raise Unmaskable("Masking does not come to rest on this text. Drop the record.")


def mask_tree(value: Any, depth: int = 0) -> Any:
    """A JSON value with every text, key and number in it masked; what cannot be masked becomes `[BINARY]`."""
    if depth > MAX_DEPTH:
        return BINARY
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value).items()
        return {mask_tree(str(key), depth + 1): mask_tree(v, depth + 1) for key, v in items}
    if isinstance(value, list):
        return [mask_tree(item, depth + 1) for item in cast(list[Any], value)]
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            masked = mask(str(value))
            return value if masked == str(value) else masked
        return mask(value) if isinstance(value, str) else value
    except Unmaskable:
        return BINARY


def pseudonym(identity: str | None) -> str | None:
    """An identity that holds no personal data: an e-mail address used as a user id becomes a stable digest.

    Masking it would merge all such users into one, and caps per user would then cap them all together.
    """
    if identity is None:
        return None
    try:
        clean = mask(identity) == identity
    except Unmaskable:
        clean = False
    return identity if clean else f"pseudonym-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


def normalised(text: str) -> str:
    """The form in which patterns see a text: NFKC, no invisible characters, ASCII digits and dashes."""
    if text.isascii():
        return text
    plain = unicodedata.normalize("NFKC", text.translate(_INVISIBLE))
    return "".join(c if c.isascii() else _ascii(c) for c in plain)


def _ascii(character: str) -> str:
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    return "-" if unicodedata.category(character) == "Pd" else character


def _masked_once(text: str) -> str:
    for kind, pattern in _COMPILED:
        parts: list[str] = []
        done = 0
        for match in pattern.finditer(text):
            offset = match.start(1)
            for start, end in kind.confirm(str(match.group(1))):
                parts += [text[done : offset + start], f"[{kind.name}]"]
                done = offset + end
        if parts:
            text = "".join([*parts, text[done:]])
    return text
