"""Which answer a text commits to. Owns extraction and cleaning; refuses to say whether an answer is right.

Rule: the last marker counts, be it `####` (its line) or `\\boxed{...}` (its braces), and only that one: what was said
before is reasoning, and a last marker with nothing behind it, or never closed, is no answer. Markers in fenced code
count only where there are none outside. Invisible characters are removed: `3<zero-width space>0` reads as 30, so it
is 30. Everything here takes time linear in the text.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_ANSWER_CHARS = 400

_INVISIBLE = dict.fromkeys([0x00AD, 0x180E, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, *range(0x2060, 0x2065), 0xFEFF])
_NUMBER = re.compile(r"([+-]?) ?(\d{1,30}(?:,\d{3})*)(\.\d{1,30})?")
_DELIMITERS = re.compile(r"\\?\$|(?<!\\)\\[()\[\]]|[`€£¥₩₹]")
_PHRASE = re.compile(r"(?:the |my )?(?:final )?answer(?: is)?\s*[:=]?\s*", re.IGNORECASE)
_WITH_UNIT = re.compile(r"([+-]?[\d,]*\d(?:\.\d+)?) ([^\W\d_]{2,}(?:[ /][^\W\d_]+){0,2})")
_NOT_UNITS = re.compile(
    r"\b(?:or|and|not|no|minus|plus|times|to|of|over|half|quarters?|thirds?|percent\w*|pct|dozens?|hundreds?|"
    r"thousands?|[mb]n|mil|[mbtr]\w*llions?|pi|squared|cubed|mod|div|if|but|maybe|sin|cos|tan|log|ln|exp|sqrt|"
    r"one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty)\b",
    re.IGNORECASE,
)


def visible(text: str) -> str:
    """The text without the characters that nobody sees."""
    return text.translate(_INVISIBLE)


def final_answer(text: str) -> str | None:
    """The answer that a solution commits to, or None."""
    text = visible(text)
    outside = "\n".join(text.split("```")[::2])
    return _last_marked(outside if "####" in outside or "\\boxed{" in outside else text)


def _last_marked(text: str) -> str | None:
    hashes, box = text.rfind("####"), text.rfind("\\boxed{")
    if hashes > box:
        return text[hashes + len("####") :].strip().partition("\n")[0].strip() or None
    if box < 0:
        return None
    depth, begin = 0, box + len("\\boxed")
    for brace in re.finditer(r"\\.|[{}]", text[begin:], re.DOTALL):  # an escaped brace is a character of the answer
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[begin + 1 : begin + brace.start()].strip() or None
    return None


def reference_answer(text: str) -> str:
    """The answer inside a reference, which may be a bare answer or a whole solution."""
    return final_answer(text) or visible(text).strip()


def bare(answer: str) -> str:
    """An answer without what surrounds it: `$...$`, bold, a currency sign, "the answer is", the unit of a number.

    A word that changes the number (`30 million`, `30 or so`) is no unit.
    """
    text = " ".join(_DELIMITERS.sub(" ", answer).replace("\u2212", "-").split())
    text = text.removeprefix("**").removesuffix("**").strip()
    phrase = _PHRASE.match(text)
    text = (text[phrase.end() :] if phrase else text).rstrip(" .,;:")
    unit = _WITH_UNIT.fullmatch(text)
    return unit[1] if unit and not _NOT_UNITS.search(unit[2]) else text


def plain_number(text: str) -> Fraction | None:
    """The exact value of `1,234`, `$18`, `-0.5`, `30 dollars` or `7.`; None for anything else."""
    match = _NUMBER.fullmatch(bare(text)) if len(text) <= MAX_ANSWER_CHARS else None
    if match is None:
        return None
    sign, whole, decimals = match.groups()
    return Fraction(f"{sign}{whole.replace(',', '')}{decimals or ''}")
