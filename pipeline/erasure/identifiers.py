"""What names a person in bytes and in texts: their ids, every pseudonym of them, and the ids of what is theirs alone.

Owns how an identifier is looked for. One of at least SHORT characters is found anywhere in a text as a word of its own,
whatever its case and normal form of Unicode, also as a URL, HTML or JSON writes it, JSON in text included; a shorter
one only where it is a whole value. A word ends where no letter or digit follows, so that `user-1` is not seen in
`user-10`. The id of a trace that others have a part in is theirs too: it is looked for nowhere, and only tells whose a
record without a user is.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from typing import Any, cast
from urllib.parse import quote, quote_plus

SHORT = 6
"""A shorter id is only looked for as a whole value: inside of texts it would be everywhere."""
SHORT_ROW = 12
"""A shorter id of a trace or a call is only looked for under the names that sources give it: it may be any number."""
ERASED = "[erased]"
"""What stands for an identifier in somebody else's text."""
_MEMORY = 256 << 20
_BEFORE, _AFTER = r"(\A|[^A-Za-z0-9]|\\[nrtbf]|\\u[0-9A-Fa-f]{4})", r"(\z|[^A-Za-z0-9])"
_PAIR = rb"u[dD][89abAB][0-9a-fA-F]{2}\\+u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPED = re.compile(rb"\\+(?:(" + _PAIR + rb"|u[0-9a-fA-F]{4})|/|\")")
_OWNER = r"[\".](?:end_?user|user(?:_?id)?|safety_identifier)"
"""Ends a name under which a number is a user's id."""
_DIGITS = re.compile(rb"u([0-9a-fA-F]{4})")
_HIDES = re.compile(rb"\\u00[2-7]|\\/")
"""Escapes of what nobody has to escape: a text with one is looked at unescaped too."""


class Identifiers:
    """The identifiers of one person.

    `users`: ids and pseudonyms; `rows`: ids of their traces and calls; `shared`: those of these that are others' too.
    """

    def __init__(self, users: Collection[str], rows: Collection[str] = (), shared: Collection[str] = ()) -> None:
        self.users = frozenset(user for user in users if user)
        self.rows = frozenset(row for row in rows if row) - self.users
        self.shared = self.rows & frozenset(shared)
        alone = self.rows - self.shared
        self._whole = frozenset(map(_folded, self.users))
        self._sought = sorted(self.users) + sorted(row for row in alone if len(row) >= SHORT_ROW)
        self._long = sorted({form for each in self._sought if len(each) >= SHORT for form in _written(each)})
        short = [each for each in self._sought if len(each) < SHORT]
        self._short, self._short_ids = sorted({form for each in short for form in _normal(each)}), len(short)
        # An id that JSON cannot hold as it is stands nowhere unescaped.
        self._is_plain = all(each.isascii() and not set('"\\/') & set(each) for each in self._sought)

    def __len__(self) -> int:
        """How many are looked for."""
        return len(self._sought)

    @property
    def short(self) -> int:
        """How many are looked for as whole values only, or not at all."""
        return self._short_ids + len(self.users) + len(self.rows - self.shared) - len(self._sought)

    @property
    def has_unsought_rows(self) -> bool:
        """Whether a record may be theirs though no text of it is looked for."""
        return bool(self.shared) or any(len(row) < SHORT_ROW for row in self.rows)

    @property
    def longest(self) -> int:
        """Bytes of the longest one as JSON in JSON may write it, every character escaped: what blocks overlap by."""
        return 8 * max((len(form) for each in self._sought for form in _normal(each)), default=0) + 64

    def with_rows(self, rows: Collection[str], shared: Collection[str] = ()) -> Identifiers:
        return Identifiers(self.users, self.rows | frozenset(rows), self.shared | frozenset(shared))

    def is_user(self, value: Any) -> bool:
        """Whether a whole value is the person."""
        return isinstance(value, str) and _folded(value) in self._whole

    def is_row(self, value: Any) -> bool:
        """Whether a whole value is the id of a trace or call of theirs."""
        return isinstance(value, str) and value in self.rows

    def in_binary(self, content: bytes) -> bool:
        """Whether bytes without any words, such as the pages of a database, hold an id of the person."""
        return self._anywhere is not None and self._anywhere.search(content) is not None

    def in_bytes(self, content: bytes) -> bool:
        """Whether content as it is stored, JSON or any other text, holds one of them."""
        if not self._sought:
            return False
        if self._stored.search(content):
            return True
        if self._is_plain and not _HIDES.search(content):
            return False
        return self._stored.search(_unescaped(content)) is not None

    def in_text(self, text: str) -> bool:
        """Whether a decoded value is one of them, or holds one."""
        return self.is_user(text) or self.in_bytes(text.encode("utf-8", "surrogatepass"))

    def redacted(self, text: str) -> str:
        """The text with ERASED for every identifier; of JSON whose escapes hide one, the JSON anew."""
        if self.is_user(text):
            return ERASED
        for _ in range(3):  # neighbours share the character between them
            text, changes = self._replaced(text)
            if not changes:
                break
        if not self.in_text(text):
            return text
        try:
            inner = json.loads(text)
        except (ValueError, RecursionError):
            return ERASED
        return json.dumps(mapped(inner, self.redacted), ensure_ascii=False)

    def _replaced(self, text: str) -> tuple[str, int]:
        written, changes = text.encode("utf-8", "surrogatepass"), 0
        for pattern, instead in self._replacements:
            written, count = pattern.subn(rb"\1" + instead + rb"\2", written)
            changes += count
        return bytes(written).decode("utf-8", "surrogatepass"), changes

    @cached_property
    def _replacements(self) -> list[tuple[Any, bytes]]:
        """What `_stored` sees, each with what is written for it: long ones as words, short ones as JSON has them."""
        numbers = [each for each in self._sought if each.isdecimal()]
        patterns = (
            (numbers, rf"({_OWNER}\\*\"\s*:\s*)(?:%s)(\z|[^0-9.])", b"null"),
            (self._long, f"{_BEFORE}(?:%s){_AFTER}", ERASED.encode()),
            (self._short, r"(\\*\")(?:%s)(\\*\")", ERASED.encode()),
        )
        any_of = [("|".join(map(_any_case, ids)), pattern, instead) for ids, pattern, instead in patterns if ids]
        return [(_compiled(f"(?i){pattern % ids}"), instead) for ids, pattern, instead in any_of]

    @cached_property
    def _anywhere(self) -> Any:
        long = [_any_case(form) for user in sorted(self.users) if len(user) >= SHORT for form in _normal(user)]
        return _compiled(f"(?i){'|'.join(long)}") if long else None

    @cached_property
    def _stored(self) -> Any:
        """Long ones as words; all of them as JSON quotes a whole value."""
        parts = [f"(?:{_BEFORE}(?:{'|'.join(map(_any_case, self._long))}){_AFTER})"] if self._long else []
        parts += [rf"\\*\"{_any_case(each)}\\*\"" for each in self._short]
        parts += [rf"{_OWNER}\\*\"\s*:\s*{each}(?:\z|[^0-9.])" for each in self._short if each.isdecimal()]
        return _compiled(f"(?i){'|'.join(parts)}")


def _normal(text: str) -> list[str]:
    """The text as it is and in both normal forms: an accent is a character of its own in one of them."""
    if text.isascii():
        return [text]
    return sorted({text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))})


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def _written(id: str) -> set[str]:
    """The ways in which a text, a URL (of Python, a browser, a form) and HTML write an id."""
    if _UNRESERVED.fullmatch(id):
        return {id}
    forms: set[str] = set()
    for text in _normal(id):
        escaped = html.escape(text)
        forms |= {text, quote(text, ""), quote(text, "!'()*"), quote_plus(text), escaped}
        forms.add(escaped.replace("&#x27;", "&#39;").replace("&quot;", "&#34;"))
    return forms


_UNRESERVED = re.compile(r"[A-Za-z0-9_.~-]+")


def _any_case(text: str) -> str:
    """A pattern for the text. The engine reads bytes, so it ignores the case of ASCII alone."""
    cased = ({c, c.lower(), c.upper()} if not c.isascii() else {c} for c in text)
    return "".join(re.escape(*c) if len(c) == 1 else f"(?:{'|'.join(map(re.escape, sorted(c)))})" for c in cased)


def _compiled(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.max_mem = _MEMORY
    options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(pattern.encode("utf-8", "surrogatepass"), options)


def _unescaped(content: bytes) -> bytes:
    """JSON at any depth without the escapes of plain characters."""

    def plain(match: re.Match[bytes]) -> bytes:
        if match.group(1) is None:
            return match.group(0)[-1:]
        units = b"".join(int(digits, 16).to_bytes(2, "big") for digits in _DIGITS.findall(match.group(1)))
        return units.decode("utf-16-be", "replace").encode()

    return _ESCAPED.sub(plain, content)


def mapped(value: Any, text: Callable[[str], str]) -> Any:
    """A value of JSON with `text` of every string in it, keys included."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {text(str(key)): mapped(inner, text) for key, inner in cast(dict[Any, Any], value).items()}
    if isinstance(value, list):
        return [mapped(inner, text) for inner in cast(list[Any], value)]
    return value


def leaves(value: Any, key: str = "", numbered: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Every string in a value of JSON with the name that it stands under; of JSON in text what is in it as well.

    `numbered`: names under which a whole number is one too. An attribute of OTLP, `{"key": ..., "value": {...}}`,
    stands under its key.
    """
    if isinstance(value, str):
        yield key, value
        if value[:1] in ("{", "["):
            try:
                yield from leaves(json.loads(value), key, numbered)
            except (ValueError, RecursionError):
                return
    elif isinstance(value, dict):
        record = cast(dict[str, Any], value)
        if record.keys() == {"key", "value"} and isinstance(record["key"], str):
            yield from leaves(record["value"], record["key"], numbered)
            return
        for name, inner in record.items():
            yield from leaves(inner, key if name in _VALUES else str(name), numbered)
    elif isinstance(value, list):
        for inner in cast(list[Any], value):
            yield from leaves(inner, key, numbered)
    elif isinstance(value, int) and key in numbered and not isinstance(value, bool):
        yield key, str(value)


_VALUES = frozenset({"stringValue", "intValue", "arrayValue", "kvlistValue", "values"})
