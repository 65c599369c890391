"""The kinds of personal data: for each a linear-time pattern (kinds.yaml) and a function that confirms it."""

import datetime
import ipaddress
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

Spared = Callable[[str, int, int], bool]
"""Whether what stands around a span shows that it is none: code, a version or a sum."""
Spans = Callable[[str], Iterator[tuple[int, int]]]


class Kind(NamedTuple):
    name: str
    pattern: str
    confirm: Spans
    """The spans in a candidate that are real."""
    spared: Spared | None = None


SECRETS = frozenset({"PRIVATE_KEY", "API_KEY", "AWS_KEY"})
"""Kinds that are masked in fenced code too."""
BEFORE, AFTER = 60, 30
"""Characters before and after a candidate that are looked at."""
_METHODS = frozenset(("to", "is", "at", "as", "in", "do", "id", "eq", "ge", "gt", "le", "lt", "ne", "mm", "mv"))
_DOMAINS = frozenset(("com", "org", "net", "edu", "gov", "mil", "info", "biz", "app", "dev", "io"))
_KEYWORDS = frozenset(("this", "super", "self", "return", "break", "continue", "yield", "git", "hg", "svn"))

_read: dict[str, Any] = msgspec.yaml.decode(Path(__file__).with_name("kinds.yaml").read_bytes())
PIECES = dict[str, str]()


def _filled(pattern: str) -> str:
    return re.sub(r"\{([A-Z_]+)\}", lambda name: PIECES.get(name[1], name[0]), pattern)


for _name, _piece in _read["pieces"].items():
    PIECES[_name] = _filled(_piece if isinstance(_piece, str) else "|".join(_piece))

_computed_before, _labelled, _telephone, _version_before = (
    re.compile(PIECES[name]).search for name in ("COMPUTED_BEFORE", "LABELLED", "TELEPHONE", "VERSION_BEFORE")
)
_computed_after = re.compile(PIECES["COMPUTED_AFTER"]).match
_north_american = re.compile(r"[2-9]\d\d[ .\-][2-9]\d\d[ .\-]\d{4}").fullmatch
_fenced = re.compile(r"```[^`\n]*\n.*?```", re.DOTALL).finditer


def is_code_address(text: str, start: int, end: int) -> bool:
    """`this@Activity.start(intent)`, `q@k.transpose(-2, -1)`, `git@host`: no mailbox."""
    local, _, domain = text[start:end].partition("@")
    last = domain.rpartition(".")[2]
    if local in _KEYWORDS or re.search("[a-z][A-Z]", last):
        return True
    is_method = last in _METHODS or (len(last) > 2 and last not in _DOMAINS)
    return is_method and text[end : end + 1] == "(" and last.isascii()


def is_version(text: str, start: int, end: int) -> bool:
    """Four numbers after a word for a version, or in a list after one."""
    return _version_before(text[max(start - BEFORE, 0) : start]) is not None


def is_computed(text: str, start: int, end: int) -> bool:
    """A number that is computed with, and that nothing near it calls a telephone number or a card."""
    before, after = text[max(start - BEFORE, 0) : start], text[end : end + AFTER]
    computed = _computed_before(before) or _computed_after(after)
    return computed is not None and not (_labelled(before) or _labelled(after))


def is_no_telephone(text: str, start: int, end: int) -> bool:
    """Ten digits in three groups that nothing near them calls a telephone number, and that do not stand alone."""
    if end - start > len("000 000 0000"):  # an extension tells too
        return False
    if _telephone(text[max(start - BEFORE, 0) : start]) or _telephone(text[end : end + AFTER]):
        return False
    return _north_american(text.strip()) is None


def fences(text: str) -> list[tuple[int, int]]:
    """Where fenced code stands. A fence that is not closed is none."""
    return [match.span() for match in _fenced(text)] if "```" in text else []


def _whole(text: str) -> Iterator[tuple[int, int]]:
    yield 0, len(text)


def _ipv4(text: str) -> Iterator[tuple[int, int]]:
    if all(int(octet) <= 255 for octet in text.split(".")):
        yield 0, len(text)


def _ipv6(text: str) -> Iterator[tuple[int, int]]:
    if not any(c.isdigit() for c in text):  # the names of a program: dead::beef
        return
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return
    yield 0, len(text)


def _ssn(text: str) -> Iterator[tuple[int, int]]:
    digits = _digits(text)
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    if area not in ("000", "666") and area < "900" and group != "00" and serial != "0000":
        yield 0, len(text)


def _rrn(text: str) -> Iterator[tuple[int, int]]:
    """Korean resident and foreigner numbers: birth date, then 1-8 for century, sex and nationality.

    Numbers given since October 2020 have no check digit, so a separated number needs none. A bare run of 13
    digits does, unless its holder was born since then.
    """
    digits = _digits(text)
    century = 1900 if digits[6] in "1256" else 2000
    try:
        born = datetime.date(century + int(digits[:2]), int(digits[2:4]), int(digits[4:6]))
    except ValueError:
        return
    weighed = sum(int(d) * w for d, w in zip(digits, (2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5), strict=False)) % 11
    checked = int(digits[12]) == ((13 if digits[6] in "5678" else 11) - weighed) % 10
    if checked or len(text) > 13 or born >= datetime.date(2020, 10, 1):
        yield 0, len(text)


def _phone(text: str) -> Iterator[tuple[int, int]]:
    if 8 <= len(_digits(text)) <= 15:  # E.164 allows 15
        yield 0, len(text)


def _extended_phone(text: str) -> Iterator[tuple[int, int]]:
    if (8 if text[0] == "+" else 9) <= len(_digits(text)) <= 20:  # the extension's digits count as well
        yield 0, len(text)


def _trunk_zero(text: str) -> Iterator[tuple[int, int]]:
    """A national number: 9 to 12 digits, one kind of separator after the area code. `05-01-2026 10` is a date."""
    separators = [c for c in text.partition(")")[2] or text if not c.isdigit()]
    if 9 <= len(_digits(text)) <= 12 and len(set(separators[1:])) <= 1:
        yield 0, len(text)


def _bare_trunk_zero(text: str) -> Iterator[tuple[int, int]]:
    isbn = len(text) == 10 and sum(int(d) * w for d, w in zip(text, range(10, 0, -1), strict=True)) % 11 == 0
    if not isbn:
        yield 0, len(text)


def _four_four(text: str) -> Iterator[tuple[int, int]]:
    years = text[-9:].split("-")
    if not all("1800" <= year <= "2100" for year in years):
        yield 0, len(text)


def _secret(text: str) -> Iterator[tuple[int, int]]:
    if any(c.isupper() for c in text) and any(c.islower() for c in text) and any(c.isdigit() for c in text):
        yield 0, len(text)  # a git commit, as long, is lower-case


def _card(text: str) -> Iterator[tuple[int, int]]:
    """Runs of 12 to 19 digits that pass Luhn and start and end where a group of digits does.

    Linear in the text: sums of Luhn's terms up to each digit make a run's sum a difference.
    """
    at = [i for i, c in enumerate(text) if c.isdigit()]
    digits = "".join(text[i] for i in at)
    ends = {n for n, i in enumerate(at) if n + 1 == len(at) or at[n + 1] > i + 1}
    sums, dashed = _luhn_sums(digits), "-" in text
    after = 0
    for start, i in enumerate(at):
        if start < after or (start and at[start - 1] == i - 1):
            continue
        for length in _card_lengths(digits[start : start + 4]):
            last = start + length - 1
            if last not in ends:
                continue
            luhn = sums[last % 2]
            if (luhn[last + 1] - luhn[start]) % 10:
                continue
            if dashed and at[last] - i == length:  # one separator between all digits: a subtraction
                continue
            yield i, at[last] + 1
            after = last + 1
            break


def _card_lengths(prefix: str) -> tuple[int, ...]:
    """How many digits the numbers of a network that begins so have, the longest first.

    Every network's first digit is 2-6; old JCB numbers (1800), UnionPay's 81 and Maestro's 12 digits are apart.
    """
    if prefix[0] in "23456" or prefix[:2] == "81":
        return _LONG_AND_MAESTRO if prefix[:2] in _MAESTRO else _LONG
    return (15,) if prefix == "1800" else ()


_LONG = tuple(range(19, 12, -1))
_LONG_AND_MAESTRO = (*_LONG, 12)
_MAESTRO = ("50", "56", "57", "58", "63", "67")


def _luhn_sums(digits: str) -> tuple[list[int], list[int]]:
    """Sums of the first n terms, for numbers whose last digit has an even place and for those with an odd one."""
    even, odd = [0], [0]
    for place, digit in enumerate(map(int, digits)):
        twice = digit * 2 - 9 * (digit > 4)
        even.append(even[-1] + (twice if place % 2 else digit))
        odd.append(odd[-1] + (digit if place % 2 else twice))
    return even, odd


def _iban(text: str) -> Iterator[tuple[int, int]]:
    """The longest prefix, cut at a space or the end, whose check digits are right: the next word may follow it."""
    cuts = [len(text), *(i for i in range(len(text) - 1, 0, -1) if text[i] == " ")]
    for cut in cuts:
        compact = text[:cut].replace(" ", "").upper()
        if 15 <= len(compact) <= 34 and int("".join(str(int(c, 36)) for c in compact[4:] + compact[:4])) % 97 == 1:
            yield 0, cut
            return


def _digits(text: str) -> str:
    return "".join(c for c in text if c.isdigit())


_CONFIRM: dict[str | None, Spans] = {
    "iban": _iban, "secret": _secret, "rrn": _rrn, "card": _card, "ssn": _ssn, "ipv4": _ipv4, "ipv6": _ipv6,
    "phone": _phone, "extended_phone": _extended_phone, "trunk_zero": _trunk_zero,
    "bare_trunk_zero": _bare_trunk_zero, "four_four": _four_four, None: _whole,
}  # fmt: skip
_SPARED: dict[str | None, Spared | None] = {
    "code_address": is_code_address, "version": is_version, "computed": is_computed, "no_telephone": is_no_telephone,
    None: None,
}  # fmt: skip


def _kind(name: str, pattern: str, confirm: str | None = None, spared: str | None = None) -> Kind:
    return Kind(name, _filled(pattern), _CONFIRM[confirm], _SPARED[spared])


KINDS = tuple(_kind(**each) for each in _read["kinds"])
COARSE, COARSE_JSON = (tuple(map(_filled, _read[name])) for name in ("coarse", "coarse_json"))
PERSONAL = "[PERSONAL]"
"""What a recogniser of the recipe's own finds."""
PLACEHOLDER = rf"\[(?:{'|'.join(sorted({kind.name for kind in KINDS}))}|BINARY|PERSONAL)\]"
"""What stands in a masked text."""
UUID = r"(?i)\b([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b"
"""Identifiers in whose random digits nothing is looked for."""
UUID_HYPHENS = 4
LABEL = PIECES["LABEL"]
"""Words that tell what the digits or letters after them are."""
