"""Personal data in text: found by linear-time patterns (RE2), confirmed by checksums, replaced by placeholders. Text
with a finding is kept in its normalised form (`normalised`), other text exactly as it was."""

import hashlib
import json
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, cast

import re2

from pipeline.traces.pii.kinds import KINDS, LABEL, PLACEHOLDER, SECRETS, UUID, UUID_HYPHENS, Kind, fences

MAX_CHARS = 1_000_000
"""Longer text is not searched, so it cannot be called clean."""
MAX_ROUNDS = 8
MAX_DEPTH = 32
BINARY = "[BINARY]"

BLOB = r"data:[\w/+.\-]+;base64,|[A-Za-z0-9+/]{256}"
INVISIBLE = r"[\p{Cf}\x{034F}\x{115F}\x{1160}\x{3164}\x{FE00}-\x{FE0F}]"
"""Format characters, joiners, fillers and variation selectors: they show as nothing and part what they stand in."""
ODD = r"[^\P{Nd}0-9]|[^\P{Pd}\-]|\x{2212}"
"""Decimal digits, dashes and the minus sign beyond ASCII."""
ESCAPE = r"\\+u([0-9A-Fa-f]{4})"
"""JSON's way to write any character, in a text that quotes JSON."""
HIDES = r"\\[^\"\\]|[:,\[\s]-?[0-9.]+[eE][+\-]?[0-9]|(?:[{\[][^{\[]*){33}"
"""What lets raw JSON differ from its values: escapes, numbers with an exponent, more than MAX_DEPTH levels."""


def _search_set() -> Any:
    pattern_set = re2.Set.SearchSet()
    for kind in KINDS:
        pattern_set.Add(kind.pattern)
    pattern_set.Compile()
    return pattern_set


def _test(pattern: str) -> Any:
    options = re2.Options()
    options.never_capture = True  # five times faster to search
    return re2.compile(pattern, options)


_compiled = [(kind, re2.compile(kind.pattern)) for kind in KINDS]
_which = _search_set()
_any = _test("|".join(f"(?:{kind.pattern})" for kind in KINDS))
_blob, _placeholder, _invisible, _odd, _label = map(_test, (BLOB, PLACEHOLDER, INVISIBLE, ODD, LABEL))
_escape, _uuid = map(re2.compile, (ESCAPE, UUID))


class Unmaskable(ValueError):
    """Text that cannot be proved clean: the record that holds it is discarded."""


def mask(text: str) -> str:
    """The text with personal data replaced by `[EMAIL]`, `[PHONE]` and so on; the same text when there is none.

    Raises Unmaskable for encoded binary, for text too long to search, for halves of characters (lone surrogates), and
    when masking does not come to rest.
    """
    if len(text) > MAX_CHARS:
        raise Unmaskable(f"{len(text)} characters; at most {MAX_CHARS} are searched. Split or drop the text.")
    try:
        plain = current = normalised(text)
        if _blob.search(current.encode()):
            raise Unmaskable("The text holds encoded binary. Log such content by reference.")
    except UnicodeEncodeError:
        raise Unmaskable("The text is not Unicode: it holds lone surrogates. Repair or drop the text.") from None
    for _ in range(MAX_ROUNDS):  # a placeholder can uncover a neighbour's word boundary
        masked = _masked_once(current)
        if masked == current:
            return text if masked == plain else masked
        current = masked
    raise Unmaskable("Masking does not come to rest on this text. Drop the record.")


def is_masked(text: str) -> bool:
    """Whether a text holds a placeholder for personal data."""
    return "[" in text and _placeholder.search(text) is not None


def personal_values(text: str) -> set[str]:
    """The personal data in a text, as it stands there, normalised. Of a longer text the first MAX_CHARS characters."""
    seen = normalised(text[:MAX_CHARS].encode(errors="replace").decode())
    return {seen[start:end] for kind, pattern in _kinds_in(seen) for start, end in _spans(seen, kind, pattern)}


def mask_json(text: str, refuse: bool = False) -> str:
    """JSON in text with every text, key and number masked (`mask_value`); the same text where nothing is found.

    What cannot be masked becomes `[BINARY]`, and a text that is no JSON `{}`; with `refuse` they raise Unmaskable.
    """
    try:
        value = json.loads(text)
        tree = mask_value(value)
    except (ValueError, RecursionError) as error:
        if not refuse:
            return "{}"
        raise Unmaskable("The text may hide personal data and is no JSON. Log tool calls as JSON.") from error
    if tree == value and _is_clean(text):
        return text
    masked = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
    if refuse and masked.count(BINARY) > text.count(BINARY):
        raise Unmaskable("The JSON holds encoded binary. Log such content by reference.")
    return masked


def mask_value(value: Any, key: str = "", depth: int = 0) -> Any:
    """A decoded value, masked. A number or text is read with its key: `{"phone": 91234567}` is a telephone number.
    Strings under `arguments` may be JSON, as in the tool calls of `rows.Message`."""
    if depth > MAX_DEPTH:
        return BINARY
    if isinstance(value, dict):
        items = cast(dict[str, Any], value).items()
        return {mask_value(k, depth=depth + 1): mask_value(inner, k, depth + 1) for k, inner in items}
    if isinstance(value, list):
        return [mask_value(item, depth=depth + 1) for item in cast(list[Any], value)]
    if value is None or isinstance(value, bool):
        return value
    label = f"{key.replace('_', ' ')}: " if _label.search(key) else ""
    try:
        text = str(value)
        if key == "arguments" and _is_json(text):
            return mask_json(text)
        masked = mask(text)
        if masked == text:
            masked = mask(f"{label}{text}").removeprefix(label)
    except ValueError:  # Unmaskable, or an integer beyond the digits that Python writes
        return BINARY
    return value if masked == text else masked


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_clean(text: str) -> bool:
    try:
        return mask(text) == text
    except Unmaskable:
        return False


def pseudonym(identity: str | None) -> str | None:
    """An identity in NFC that holds no personal data: an e-mail address used as a user id becomes a stable digest.

    Masking it would merge all such users into one, and caps per user would then cap them all together.
    """
    if identity is None:
        return None
    identity = unicodedata.normalize("NFC", identity)
    digest = hashlib.sha256(identity.encode(errors="surrogatepass"))
    return identity if _is_clean(identity) else f"pseudonym-{digest.hexdigest()[:32]}"


def normalised(text: str) -> str:
    """The form in which patterns see a text: NFKC, no invisible characters, ASCII digits and dashes, no `\\uXXXX`."""
    while "\\u" in text and (plain := _escape.sub(_unescaped, text)) != text:
        text = plain
    if text.isascii():
        return text
    text = _visible(unicodedata.normalize("NFKC", _visible(text)))
    return _odd.sub(_ascii, text) if _odd.search(text) else text


def _visible(text: str) -> str:
    return _invisible.sub("", text) if _invisible.search(text) else text


def _unescaped(match: Any) -> str:
    character = chr(int(match.group(1), 16))
    shown = character.isprintable() or unicodedata.category(character) == "Cf"
    return character if shown and character not in '"\\' else match.group(0)


def _ascii(match: Any) -> str:
    digit = unicodedata.decimal(match.group(0), None)
    return "-" if digit is None else str(digit)


def _masked_once(text: str) -> str:
    for kind, pattern in _kinds_in(text):
        text = _masked_kind(text, kind, pattern)
    return normalised(text)


def _kinds_in(text: str) -> list[tuple[Kind, Any]]:
    """Kinds that may stand in a text. The set is the fastest; it is empty also when it runs out of memory, and a search
    does not."""
    data = text.encode()  # searched so, RE2 need not count the characters up to a match
    if which := _which.Match(data):
        return [_compiled[n] for n in sorted(which)]
    return _compiled if _any.search(data) else []


def _masked_kind(text: str, kind: Kind, pattern: Any) -> str:
    parts: list[str] = []
    done = 0
    for start, end in _spans(text, kind, pattern):
        parts += [text[done:start], f"[{kind.name}]"]
        done = end
    return "".join([*parts, text[done:]]) if parts else text


def _spans(text: str, kind: Kind, pattern: Any) -> Iterator[tuple[int, int]]:
    """Where a kind stands in a text, outside of identifiers, and of code unless it is a secret."""
    outside: list[tuple[int, int]] | None = None
    # In ASCII a byte is a character; what is not has its characters counted by RE2's own wrapper.
    for match in pattern.finditer(text.encode() if text.isascii() else text):
        offset, last = match.span(1)
        for start, end in kind.confirm(text[offset:last]):
            if outside is None:
                outside = _left_alone(text, kind)
            at = bisect_right(outside, (offset + start, len(text))) - 1
            if at >= 0 and offset + end <= outside[at][1]:
                continue
            if kind.spared is None or not kind.spared(text, offset + start, offset + end):
                yield offset + start, offset + end


def _left_alone(text: str, kind: Kind) -> list[tuple[int, int]]:
    """Passages in their order, none in another, in which the kind is not looked for."""
    hyphened = text.count("-") >= UUID_HYPHENS  # far faster than the search that it spares
    identifiers = [uuid_match.span() for uuid_match in _uuid.finditer(text)] if hyphened else []
    code = [] if kind.name in SECRETS else fences(text)
    if not code:
        return identifiers
    own = [each for each in identifiers if not any(start <= each[0] < end for start, end in code)]
    return sorted([*own, *code])
