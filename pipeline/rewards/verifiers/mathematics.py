"""Numbers, LaTeX, sets, intervals and tuples, compared by math-verify, in a worker that can be killed. An answer is
read as a whole or not at all: math-verify would take the last part of a text that it can read."""

import logging
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from pipeline.rewards.verifiers.answers import MAX_ANSWER_CHARS, bare, final_answer, plain_number, reference_answer
from pipeline.rewards.verifiers.outcome import Grade, Outcome

_ARITHMETIC = re.compile(r"[\d\s.+\-*/^()]+")
_MIXED = re.compile(r"([+-]?)(\d+) (\d+)/(\d+)")
_GROUPED = re.compile(r"(?<![\d.])\d{1,3}(?:(?: |\\,|\\ |\{,\})\d{3})+(?!\d)")
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})(?!\w)")
_RELATION = {"<=": r"\le ", ">=": r"\ge ", "≤": r"\le ", "≥": r"\ge "}
_MATRIX = re.compile(r"\\begin\{([a-zA-Z]*matrix)\}.*?\\end\{\1\}", re.DOTALL)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+|[+-]?\d+,\d+")
_DIGITS = 12
"""To which numbers are equal: 0.3333333 is no third."""
_SIDE_BY_SIDE = re.compile(r"\d(?:\s|\\[,;:! ]|\\q?quad|~|&)+\.?\d")


def without_math_verify(completion: str, reference: str) -> Grade | tuple[str, str]:
    """The verdict where plain text and exact numbers decide, else (answer, gold) for `compare`."""
    gold = reference_answer(reference)
    if not gold or len(gold) > MAX_ANSWER_CHARS:
        return Grade(Outcome.unparsable_gold, "")
    answer = final_answer(completion)
    if answer is None or not any(c.isalnum() or c == "∅" for c in answer):
        return Grade(Outcome.no_answer, answer or "")
    if answer == gold:
        return Grade(Outcome.correct, answer)
    if len(answer) > MAX_ANSWER_CHARS:
        return Grade(Outcome.error, answer)
    same = same_time(answer, gold)
    if same is not None or other_unit(answer, gold):
        return Grade(Outcome.correct if same else Outcome.wrong, answer)
    mine, golden = plain_number(answer), plain_number(gold)
    if mine != golden and ((golden or 0) == _with_comma(answer) or (mine or 0) == _with_comma(gold)):
        return Grade(Outcome.error, answer)  # 1.000 is one, or a thousand: only its writer knows
    if mine is None or golden is None:
        return answer, gold
    return Grade(Outcome.correct if mine == golden else Outcome.wrong, answer)


def _with_comma(answer: str) -> Fraction | None:
    """The number as those write it whose decimal sign is the comma; None where there is none."""
    text = bare(answer)
    swapped = text.translate(str.maketrans(".,", ",."))
    return plain_number(swapped) if _THOUSANDS.fullmatch(text) else None


def compare(answer: str, gold: str) -> Outcome:
    """math-verify's word. May run for ever, exhaust the memory or raise anything."""
    from math_verify import verify

    parsed_gold = _parse(gold)
    if not parsed_gold:
        return Outcome.unparsable_gold
    parsed = _parse(answer)
    if not parsed:
        return Outcome.no_answer
    same = verify(
        parsed_gold, parsed, float_rounding=_DIGITS, allow_set_relation_comp=True,
        timeout_seconds=None, raise_on_error=True,
    )  # fmt: skip
    if "%" not in answer + gold and _agree(parsed_gold[0], parsed[0], positive=not same) is not same:
        # Equal to math-verify and far apart in proportion (2**-98, 2**-99); or equal for positive values alone.
        return Outcome.wrong if same else Outcome.error
    return Outcome.correct if same else Outcome.wrong


def _agree(gold: Any, answer: Any, *, positive: bool) -> bool:
    """Whether two numbers are equal to so many digits in proportion; `positive`: two expressions with the same symbols,
    at some positive values of these. What is neither agrees as math-verify says."""
    from sympy import Expr, N, Rational

    if not (isinstance(gold, Expr) and isinstance(answer, Expr)) or gold.free_symbols != answer.free_symbols:
        return not positive
    if positive != bool(gold.free_symbols):
        return not positive
    symbols = sorted(gold.free_symbols, key=str)
    for turn in (3, 5, 7):
        values: Any = {symbol: Rational(turn + 2 * place, 11) for place, symbol in enumerate(symbols)}
        left, right = (N(each.subs(values), 30) for each in (gold, answer))
        if not (left.is_number and right.is_number) or abs(left - right) > abs(left) * 10**-_DIGITS:
            return False
    return True


def warm_up() -> None:
    """Import and compile everything, so that no item pays for it."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that time-outs are ours
    compare(r"\frac{2}{4} + 0", "0.5")


@lru_cache(4096)  # nine tenths of the time goes into parsing, and completions of one prompt share their reference
def _parse(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    no_limit: Any = None  # typed as int, documented as None
    text = _GROUPED.sub(lambda group: re.sub(r"\D", "", group.group()), bare(text))
    text = _SCIENTIFIC.sub(r"(\1 \\cdot 10^{\2})", text)
    for sign, command in _RELATION.items():
        text = text.replace(sign, command)
    text = _MIXED.sub(r"\1(\2+\\frac{\3}{\4})", text)
    # After the word "answer" math-verify would take the next part that it can read, and drop the rest.
    if not text or _SIDE_BY_SIDE.search(_MATRIX.sub("", text)) or "answer" in text.lower():
        return []
    expressions = parse(
        f"${text}$",
        [LatexExtractionConfig()],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=no_limit,
        raise_on_error=True,
    )
    if expressions or not _ARITHMETIC.fullmatch(text):
        return expressions
    expressions = parse(text, [ExprExtractionConfig()], parsing_timeout=no_limit, raise_on_error=True)
    return expressions[:1] if expressions[1:] == [text] else []  # the second is the part of the text that was read


# Units, currencies and times of day: where the reference has one, the answer has no other. An answer without a unit is
# compared by its number alone. Nothing is converted: 0.5 hours are not 30 minutes.

_CURRENCY = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₩": "won", "₹": "rupee"}
_ALIASES = {
    **{"usd": "dollar", "buck": "dollar", "eur": "euro", "gbp": "pound", "jpy": "yen", "krw": "won", "inr": "rupee"},
    **{"h": "hour", "hr": "hour", "min": "minute", "sec": "second", "yr": "year", "inche": "inch", "ft": "foot"},
    **{"feet": "foot", "metre": "meter", "km": "kilometer", "kilometre": "kilometer", "cm": "centimeter"},
    **{"centimetre": "centimeter", "mm": "millimeter", "millimetre": "millimeter", "kg": "kilogram", "lb": "pound"},
    **{"gram": "gram", "litre": "liter", "ml": "milliliter", "millilitre": "milliliter", "mph": "mile", "oz": "ounce"},
}
_MEASURES = {*_CURRENCY.values(), *_ALIASES.values(), "cent", "day", "week", "month", "mile", "yard", "ton"}
_FILLERS = {"per", "a", "an", "the", "each", "about"}
_SIGN = re.compile(r"\\?([$€£¥₩₹])[\s\d+-]*\d|\d\s*\\?([$€£¥₩₹])")
_WORDS = re.compile(
    r"\d[\s~]*(?:\\[,;:! ])?\s*"
    r"(\\(?:text|mathrm|mbox|textbf)\{[^{}]*\}|[^\W\d_]{2,}(?:[ /]+[^\W\d_]+)*)[\s.^\d{}$]*$"
)
_WORD = re.compile(r"[^\W\d_]+")
_TIME = re.compile(r"(\d{1,2})(?::([0-5]\d))?(?::[0-5]\d)?\s*(?:\\text\{)?\s*(?:([ap])\.?\s?m\.?)?\}?", re.IGNORECASE)


def other_unit(answer: str, gold: str) -> bool:
    """Whether both have a unit, and not the same one."""
    mine, golden = _unit(answer), _unit(gold)
    if not mine or not golden or mine <= golden or golden <= mine:
        return False
    measures = mine & _MEASURES, golden & _MEASURES
    if all(measures):
        return not (measures[0] <= measures[1] or measures[1] <= measures[0])
    return not mine & golden


def same_time(answer: str, gold: str) -> bool | None:
    """Whether two times of day are the same; None where one of them is none."""
    mine, golden = _time(answer), _time(gold)
    if mine is None or golden is None:
        return None
    if golden[2]:  # 17:30 is 5:30 PM, and 5:30 is not
        return _minute(mine) == _minute(golden)
    return mine[:2] == golden[:2] or _minute(mine) == _minute(golden)


def _unit(text: str) -> set[str]:
    text = text.strip()
    text = text[1:-1] if len(text) > 1 and text[0] == text[-1] == "$" else text
    units = {_CURRENCY[sign[1] or sign[2]] for sign in _SIGN.finditer(text)}
    if words := _WORDS.search(text):
        spelt = re.sub(r"\\[a-z]+", " ", words[1])
        named = {word.lower() for word in _WORD.findall(spelt)} - _FILLERS
        units |= {_ALIASES.get(_singular(word), _singular(word)) for word in named}
    return units


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word


def _time(text: str) -> tuple[int, int, str] | None:
    """Hour, minute, and `a`, `p` or ""."""
    found = _TIME.fullmatch(text.strip(" $`*"))
    if found is None or not (found[2] or found[3]) or int(found[1]) > 24:
        return None
    return int(found[1]), int(found[2] or 0), (found[3] or "").lower()


def _minute(time: tuple[int, int, str]) -> int:
    hour, minute, half = time
    return (hour if not half else hour % 12 + 12 * (half == "p")) * 60 + minute
