"""Context of a candidate that shows that it is code, a version or a sum, and no personal data. Fenced code is left
alone but for keys and tokens."""

import re
from collections.abc import Callable

Spared = Callable[[str, int, int], bool]

SECRETS = frozenset({"PRIVATE_KEY", "API_KEY", "AWS_KEY"})
"""Kinds that are masked in fenced code too."""
PHONE_WORD = (
    r"(?i:phone|mobile|\bcell|whatsapp|\bfax\b|\btel\b|call (?:me|us|him|her)|téléphone|portable|telefon|handy|"
    r"m[oó]vil|celular|电话|手机|電話|携帯|전화|휴대폰)"
)
SSN_WORD = r"(?i:\bssn|_ssn|social[ _\-]?security)"
TELEPHONE = (
    rf"{PHONE_WORD}|(?i:\b(?:call|dial|ring|reach|contact|sms|(?:hot|help|land)line|number|text (?:me|us|him|her))|"
    r"(?:_|\b)(?:nr|no\.))"
)
"""Words that tell that a group of digits is a telephone number: it may also be a sum."""
BEFORE, AFTER = 60, 30
"""Characters before and after a candidate that are looked at."""

_OPERATOR = r"(?:\s[+*\xd7÷^]\s|[+*\xd7÷^])"
_VERB = (
    r"(?i:what is|what's|compute|calculate|evaluate|solve|simplify|subtract|add|multiply|divide|"
    r"(?:sum|product|difference) of)"
)
_computed_before = re.compile(rf"(?:\b{_VERB}\s+\(?|\d\)?{_OPERATOR}\(?|\d\)?\s?=\s?)$").search
_computed_after = re.compile(rf"\)?(?:{_OPERATOR}\(?\d|\s?=\s?-?\d)").match
_labelled = re.compile(rf"{TELEPHONE}|{SSN_WORD}|(?i:\bcard|\bvisa\b|mastercard|\bamex\b|\bcv[vc])").search
_telephone = re.compile(TELEPHONE).search
_north_american = re.compile(r"[2-9]\d\d[ .\-][2-9]\d\d[ .\-]\d{4}").fullmatch
_VERSIONED = (
    r"(?i:\bversions?|\bver\.?|\bv|\breleases?|\bsections?|\bchapter|\bclause|\bparagraph|\bbuild|\bfirmware|\bdriver|"
    r"\bsdk|§|版本|バージョン|버전)"
)
_version_before = re.compile(
    rf"{_VERSIONED}\s*(?:(?i:is|to|from|no\.?|number|[=:])\s*){{0,3}}"
    r"(?:v?\d+(?:\.\d+)+\s*(?:,|-|\b(?:and|or|to)\b)\s*v?){0,9}$"
).search
_METHODS = frozenset(("to", "is", "at", "as", "in", "do", "id", "eq", "ge", "gt", "le", "lt", "ne", "mm", "mv"))
_DOMAINS = frozenset(("com", "org", "net", "edu", "gov", "mil", "info", "biz", "app", "dev", "io"))
_KEYWORDS = frozenset(("this", "super", "self", "return", "break", "continue", "yield", "git", "hg", "svn"))
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
