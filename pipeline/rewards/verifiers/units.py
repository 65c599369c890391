"""Units, currencies and times of day in an answer: where the reference has one, the answer has no other.

An answer without a unit is compared by its number alone. Nothing is converted: 0.5 hours are not 30 minutes.
"""

from __future__ import annotations

import re

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
