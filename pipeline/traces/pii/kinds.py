r"""The kinds of personal data: for each a linear-time pattern (RE2) and a function that confirms what it finds. `\b`,
`\d` and `\w` are ASCII in RE2, so the letters of other scripts are boundaries."""

import datetime
import ipaddress
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

Spared = Callable[[str, int, int], bool]
"""Whether what stands around a span shows that it is none: code, a version or a sum."""

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


Spans = Callable[[str], Iterator[tuple[int, int]]]


class Kind(NamedTuple):
    """A kind of personal data. Group 1 of `pattern` is a candidate; `confirm` gives the spans in it that are real."""

    name: str
    pattern: str
    confirm: Spans
    spared: Spared | None = None
    """Whether what stands around a span shows that it is none."""


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


_LEFT = r"(?:\b|_|\\[nrtbf])"  # the letter of an escape such as \n in quoted text is no part of the word after it
_RIGHT = r"(?:\b|_)"
_EXTENSION = r"(?: ?(?:x|ext\.? ?)\d{1,6})?"
_TOKENS = "|".join(
    (
        r"(?:sk|rk|pk)[-_][A-Za-z0-9][A-Za-z0-9_\-]{15,}",  # OpenAI, Anthropic, Stripe
        r"(?:gh[a-z]_|github_pat_|gl[a-z]{2,5}-|hf_|npm_|whsec_|AIza)[A-Za-z0-9_\-]{20,}",
        r"xox[a-z]-[A-Za-z0-9\-]{11,}",
        r"pypi-[A-Za-z0-9_\-]{50,}",
        r"SG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}",  # SendGrid
        r"eyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}(?:\.[A-Za-z0-9_\-]*)?",  # JWT
    )
)
_IBAN_COUNTRIES = (
    "A[DELTZ]|B[AEGHIRY]|C[HRYZ]|D[EJKO]|E[EGS]|F[IKOR]|G[BEILRT]|H[NRU]|I[ELQST]|JO|K[WZ]|L[BCITUVY]|"
    "M[CDEKNRTU]|N[ILO]|OM|P[KLST]|QA|R[OSU]|S[ACDEIKMOTV]|T[LNR]|UA|V[AG]|XK|YE"
)
_PEM = "-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
_SAID = r"(?i:number|n[or]|numéro|nummer|número|is|at|on|est|ist|es|é|号码|番号|번호|是|は|는|:)"

KINDS = (
    Kind("PRIVATE_KEY", rf"(?s)({_PEM}.*?(?:-----END [A-Z ]{{0,30}}PRIVATE KEY(?: BLOCK)?-----|\z))", _whole),
    Kind("API_KEY", rf"{_LEFT}({_TOKENS})", _whole),
    Kind("API_KEY", r"(?i:bearer) ([A-Za-z0-9._\-]{20,})", _whole),
    Kind("AWS_KEY", rf"{_LEFT}((?:A3T[A-Z0-9]|AKIA|AGPA|AIDA|AROA|AIPA|ANPA|ANVA|ASIA)[A-Z0-9]{{16}}){_RIGHT}", _whole),
    Kind(
        "AWS_KEY",
        r"(?i:aws|secret)[^\n]{0,40}?[^A-Za-z0-9/+]([A-Za-z0-9/+]{40})(?:[^A-Za-z0-9/+=]|$)",
        _secret,
    ),
    Kind(
        "EMAIL",
        r"(?:\\[nrtbf])?([\pL\pM\pN._%+\-]+(?:'[\pL\pM\pN._%+\-]+)*(?:@|%40)(?:[\pL\pM\pN_\-]+\.)+\pL[\pL\pM\pN\-]+)",
        _whole,
        is_code_address,
    ),
    Kind(
        "IBAN",
        rf"(?i){_LEFT}((?:{_IBAN_COUNTRIES})[0-9]{{2}}(?: ?[A-Z0-9]{{4}}){{2,7}}(?: ?[A-Z0-9]{{1,3}})?){_RIGHT}",
        _iban,
    ),
    Kind("RRN", rf"{_LEFT}(\d{{2}}[01]\d[0-3]\d(?: ?- ?)?[1-8]\d{{6}}){_RIGHT}", _rrn, is_computed),
    Kind("CARD", rf"{_LEFT}(\d(?:[ \-]?\d){{11,}}){_RIGHT}", _card, is_computed),
    Kind("SSN", rf"{_LEFT}(\d{{3}}-\d{{2}}-\d{{4}}){_RIGHT}", _ssn, is_computed),
    Kind(
        "SSN",
        rf"{SSN_WORD}\W{{0,4}}(?:{_SAID}\W{{0,4}}){{0,3}}(\d{{3}}[ \-]?\d{{2}}[ \-]?\d{{4}})\b",
        _ssn,
    ),
    Kind("IP", rf"{_LEFT}(\d{{1,3}}(?:\.\d{{1,3}}){{3}}){_RIGHT}", _ipv4, is_version),
    Kind("IP", rf"(?i){_LEFT}([0-9a-f]{{3,4}}:(?:[0-9a-f]{{0,4}}:){{1,6}}[0-9a-f]{{0,4}})(?:[^\w:]|_|$)", _ipv6),
    # With a country code. After a number, "+" adds, unless what follows is grouped as telephone numbers are.
    Kind(
        "PHONE",
        r"(?:^\s*|[^\w\s)=]|[^\d\s)=]\s+|[A-Za-z_]=|\\[nrtbf])"
        rf"(\+\d{{1,3}}[ .\-]?(?:\(\d{{1,4}}\)[ .\-]?)?\d{{1,4}}(?:[ .\-/]?\d{{2,4}}){{1,4}}{_EXTENSION})\b",
        _extended_phone,
    ),
    Kind("PHONE", r"(?:^|\W)(\+\d{1,3}[ .\-]?\(?\d{1,4}\)?(?:[ .\-]\d{2,4}){2,4})\b", _phone),
    Kind("PHONE", rf"{_LEFT}(00[1-9]\d{{0,2}}(?:[ .\-/]\(?\d{{1,4}}\)?){{2,5}}{_EXTENSION})\b", _extended_phone),
    Kind("PHONE", rf"{_LEFT}(00[1-9]\d{{9,12}})\b", _whole),
    # North American form.
    Kind("PHONE", rf"(\(\d{{3}}\) ?\d{{3}}[ .\-]\d{{4}}{_EXTENSION})\b", _whole),
    Kind("PHONE", rf"{_LEFT}(\d{{3}}[ .\-]\d{{3}}[ .\-]\d{{4}}{_EXTENSION})\b", _whole, is_no_telephone),
    # With a trunk zero (Europe, Japan, Korea), an area code of Brazil, or the eight of Russia.
    Kind("PHONE", r"(\(0[1-9]\d{0,4}\)[ \-]?\d{2,8}(?:[ .\-]\d{2,4}){0,4})\b", _trunk_zero),
    Kind(
        "PHONE",
        rf"{_LEFT}(0[1-9]\d{{0,4}}[ .\-/]\d{{2,8}}(?:[ .\-]\d{{2,4}}){{0,4}})\b",
        _trunk_zero,
        is_computed,
    ),
    Kind("PHONE", rf"{_LEFT}(0[1-9]\d{{8,9}})\b", _bare_trunk_zero, is_computed),
    Kind("PHONE", r"(\(\d{2}\) ?9?\d{4}-\d{4})\b", _whole),
    Kind("PHONE", rf"{_LEFT}(\d{{2}}[ \-]9?\d{{4}}-\d{{4}})\b", _four_four, is_computed),
    Kind("PHONE", rf"{_LEFT}(8[ \-]?\(?\d{{3}}\)?[ \-]\d{{3}}[ \-]\d{{2}}[ \-]?\d{{2}})\b", _whole),
    # Bare digits: a Chinese mobile number that no sum leads to, and what a text says is a telephone number.
    Kind(
        "PHONE",
        r"(?:^|[^\w\s#=+\-*/\x{D7}÷$€£%.,]|[^\d\s#=+\-*/\x{D7}÷$€£%] |[A-Za-z_]=)"
        r"(1(?:3\d|4[5-9]|5[0-35-9]|6[2567]|7[0-8]|8\d|9[0-35-9])[ \-]?\d{4}[ \-]?\d{4})\b",
        _whole,
    ),
    Kind(
        "PHONE",
        rf"{PHONE_WORD}\W{{0,4}}(?:{_SAID}\W{{0,4}}){{0,3}}(\(?\d(?:[ \-.()]{{0,3}}\d){{7,14}})\b",
        _whole,
    ),
)

PERSONAL = "[PERSONAL]"
"""What a recogniser of the recipe's own finds."""
PLACEHOLDER = rf"\[(?:{'|'.join(sorted({kind.name for kind in KINDS}))}|BINARY|PERSONAL)\]"
"""What stands in a masked text."""
UUID = r"(?i)\b([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b"
"""Identifiers in whose random digits nothing is looked for."""
UUID_HYPHENS = 4
LABEL = rf"{TELEPHONE}|{SSN_WORD}|(?i:aws|secret)"
"""Words that tell what the digits or letters after them are."""

_CERTAIN = (
    r"@|%40|-----BEGIN|;base64,|[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]|[0-9A-Fa-f]{3}:[0-9A-Fa-f]{0,4}:|"
    r"[A-Za-z]{2}[0-9]{2} ?[A-Za-z0-9]{4} ?[A-Za-z0-9]{4}"
)
COARSE = (rf"{_CERTAIN}|[A-Za-z0-9_\-+/.]{{16}}|[0-9](?:[ .\-()/]{{0,3}}[0-9]){{7}}",)
"""Passes one of which every text with a candidate of any kind matches, in few states: RE2's speed depends on them."""
COARSE_JSON = (
    rf"{_CERTAIN}|\+[0-9]|[0-9](?:[ .\-()/]{{0,2}}[0-9]){{8}}|[0-9] - [1-8]|00[1-9][0-9]{{0,2}}[ .\-/]",
    r"(?i:bearer) |(?:sk|rk|pk)[-_]|gh[a-z]_|github_pat_|gl[a-z]{2,5}-|hf_|npm_|whsec_|AIza|xox[a-z]-|pypi-|SG\.|eyJ|"
    rf"A[A-Z0-9]{{19}}|[A-Za-z0-9/+]{{40}}|{SSN_WORD}|{PHONE_WORD}\D*[0-9]",
)
"""The same for JSON, which is full of identifiers and times: they should not match."""
