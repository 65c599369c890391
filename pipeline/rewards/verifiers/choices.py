"""Multiple choice: the answer is the letter of an option, A to J.

A completion names it alone (`B`, `(B)`), before the option's text (`B) 3`), behind a marker (`#### B`), in a phrase
(`The answer is B`), or as the only option that it names. Two options at once are no answer.
"""

from __future__ import annotations

import re

from pipeline.rewards.verifiers.answers import final_answer, reference_answer, visible
from pipeline.rewards.verifiers.outcome import Grade, Outcome

_AROUND = r"[\s*_`'\"$(){}\[\].:,]*"
_ALONE = re.compile(
    rf"{_AROUND}(?:(?:option|choice|answer)\b{_AROUND})?(?:\\text\{{)?{_AROUND}([a-j]){_AROUND}", re.IGNORECASE
)
_LED = re.compile(r"[\s*_`(\[]*([A-J])[*_`]*(?:[)\]:]|\.(?=\s))")
_NO_OTHER = r"(?![\w'\u2019])(?!\)?\**\s*(?:or|and|/|,|&)\s*[(*]*[A-J]\b)"
_NAMED = re.compile(rf"(?i:\b(?:answer|option|choice))\**(?i:\s+(?:is|was))?[\s:*_`(\[=]*([A-J]){_NO_OTHER}")
_PAIR = re.compile(r"(?<!\w)[A-J]\W{0,4}(?:or|and|/|,|&)\W{0,4}[A-J](?!\w)")
_STANDING = re.compile(r"(?<![\w'\u2019])(?:\(([A-J])\)|([A-J])(?=[).:,;]|\s*$))", re.MULTILINE)


def choice(completion: str, reference: str) -> Grade:
    """Whether the completion names the option of the reference."""
    gold = _letter(reference_answer(reference))
    if not gold:
        return Grade(Outcome.unparsable_gold, "")
    marked = final_answer(completion)
    answer = _letter(marked) if marked else _chosen(visible(completion).strip())
    if not answer:
        return Grade(Outcome.no_answer, marked or "")
    return Grade(Outcome.correct if answer == gold else Outcome.wrong, answer)


def _letter(text: str) -> str:
    """The letter that a short answer is, or begins with."""
    named = _ALONE.fullmatch(text) or _LED.match(text) or _NAMED.search(text)
    return named[1].upper() if named else ""


def _chosen(text: str) -> str:
    if named := _ALONE.fullmatch(text) or _LED.match(text):
        return named[1].upper()
    if phrases := _NAMED.findall(text):
        return phrases[-1]
    if _PAIR.search(text):
        return ""
    last = text.rpartition("\n")[2]
    if named := _ALONE.fullmatch(last) or _LED.match(last):
        return named[1].upper()
    standing = {first or second for first, second in _STANDING.findall(text)}
    return standing.pop() if len(standing) == 1 else ""
