"""Which answer a text commits to: behind its last marker, `####` (its line) or `\\boxed{...}` (its braces). Thoughts,
headings of Markdown and invisible characters are no part of it. Linear in the text."""

import re
import unicodedata
from fractions import Fraction

from pipeline.core.thoughts import behind_thoughts

MAX_ANSWER_CHARS = 400

_INVISIBLE = dict.fromkeys([0x00AD, 0x180E, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, *range(0x2060, 0x2065), 0xFEFF])
_NUMBER = re.compile(r"([+-]?) ?(\d{1,30}(?:,\d{3})*)(\.\d{1,30})?(?:[eE]([+-]?\d{1,3}))?")
_DELIMITERS = re.compile(r"\\?\$|(?<!\\)\\[()\[\]]|[`€£¥₩₹]")
_PHRASE = re.compile(r"(?:the |my )?(?:final )?answer(?: is)?\s*[:=]?\s*", re.IGNORECASE)
_WITH_UNIT = re.compile(r"([+-]?[\d,]*\d(?:\.\d+)?) ([^\W\d_]{2,}(?:[ /][^\W\d_]+){0,2})")
_NOT_UNITS = re.compile(
    r"\b(?:or|and|not|no|minus|plus|times|to|of|over|half|quarters?|thirds?|percent\w*|pct|dozens?|hundreds?|"
    r"thousands?|[mb]n|mil|[mbtr]\w*llions?|pi|squared|cubed|mod|div|if|but|maybe|sin|cos|tan|log|ln|exp|sqrt|"
    r"one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty)\b",
    re.IGNORECASE,
)
_MARKER = re.compile(
    r"(?<!#)####(?!#)|\\f?box(?:ed)?\s*\{|^[ \t]*#{1,6}[ \t*]*(?:final )?(?:answer|result)[ \t:*]*$",
    re.IGNORECASE | re.MULTILINE,
)
_HEADING = re.compile(r"^[ \t]*#{1,6}[ \t]", re.MULTILINE)
_SOMETHING = re.compile(r"\S")
_LATEX_WORD = re.compile(r"\\(?:text|mathrm|mbox)\{[^{}]*\}|\\[a-zA-Z]+")
_WORD = re.compile(r"[^\W\d_]{3,}(?!\()|[^\x00-\x7f\W\d_]{2,}")


def visible(text: str) -> str:
    """The text without the characters that nobody sees."""
    return text.translate(_INVISIBLE)


def final_answer(text: str) -> str | None:
    """The answer that a solution commits to, or None."""
    text = visible(behind_thoughts(text) or "")
    outside = "\n".join(text.split("```")[::2])
    marked = _marked_answer(outside)
    return (_marked_answer(text) if marked is None else marked) or None


def _marked_answer(text: str) -> str | None:
    """What stands behind the last marker of a text, "" for nothing; None without one."""
    for marker in reversed([*_MARKER.finditer(text)]):
        if "{" in marker.group():
            return _in_braces(text, marker.end())
        end = text.find("\n", marker.end())
        end = len(text) if end < 0 else end
        line = text[marker.end() : end].strip()
        title = (line or marker.group()).strip("# \t:*_").lower().removeprefix("final ")
        more = _SOMETHING.search(text, end) is not None
        if title in ("answer", "result") and more:
            heading = _HEADING.search(text, end + 1)
            return text[end : heading.start() if heading else len(text)].strip()
        begins_line = not text[text.rfind("\n", 0, marker.start()) + 1 : marker.start()].strip()
        if not (more and begins_line and _is_title(line)):
            return line
    return None


def _is_title(line: str) -> bool:
    """Whether a line says words rather than a number, with its unit or in a phrase, or a formula."""
    return bool(_WORD.search(_LATEX_WORD.sub("", line))) and plain_number(line) is None


def _in_braces(text: str, begin: int) -> str:
    """The text up to the brace that closes; "" where none does."""
    depth = 1
    for brace in re.finditer(r"\\.|[{}]", text[begin:], re.DOTALL):  # an escaped brace is a character of the answer
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[begin : begin + brace.start()].strip()
    return ""


def reference_answer(text: str) -> str:
    """The answer inside a reference, which may be a bare answer or a whole solution."""
    return final_answer(text) or visible(text).strip()


def bare(answer: str) -> str:
    """An answer without what surrounds it: `$...$`, bold, a currency sign, "the answer is", the unit of a number.

    A word that changes the number (`30 million`, `30 or so`) is no unit.
    """
    text = answer if answer.isascii() else "".join(map(_as_ascii, answer))
    text = " ".join(_DELIMITERS.sub(" ", text).split())
    text = text.removeprefix("**").removesuffix("**").strip()
    phrase = _PHRASE.match(text)
    text = (text[phrase.end() :] if phrase else text).rstrip(" .,;:")
    unit = _WITH_UNIT.fullmatch(text)
    return unit[1] if unit and not _NOT_UNITS.search(unit[2]) else text


def _as_ascii(character: str) -> str:
    """Minus and fraction signs of Unicode as ASCII: ½ is ` 1/2`."""
    if character in "\u2212\u2044":
        return "-" if character == "\u2212" else "/"
    kind, _, parts = unicodedata.decomposition(character).partition(" ")
    if kind != "<fraction>":
        return character
    return " " + "".join(chr(int(part, 16)) for part in parts.split()).replace("\u2044", "/")


def plain_number(text: str) -> Fraction | None:
    """The exact value of `1,234`, `$18`, `-0.5`, `30 dollars` or `7.`; None for anything else."""
    match = _NUMBER.fullmatch(bare(text)) if len(text) <= MAX_ANSWER_CHARS else None
    if match is None:
        return None
    sign, whole, decimals, exponent = match.groups()
    return Fraction(f"{sign}{whole.replace(',', '')}{decimals or ''}") * Fraction(10) ** int(exponent or 0)
