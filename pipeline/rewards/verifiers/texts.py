"""Texts that must be equal, exactly or by meaning of their letters, hold another, or name the option of a choice. The
committed answer is compared where there is one (answers.py), else the whole text."""

import re
import unicodedata

from pipeline.rewards.verifiers.answers import final_answer, reference_answer, visible
from pipeline.rewards.verifiers.outcome import Grade, Outcome

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
OPTION = re.compile(r"\s*[A-J]\s*")
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, kana, Han; and Hangul, whose particles follow a word without a space."""
_UNSPACED = re.compile(rf"(?<=[{_SPACELESS}]) | (?=[{_SPACELESS}])")
_EDGE = re.compile(rf"[ {_SPACELESS}]")
_PUNCTUATION = re.compile(r"[^\w\s](?!\d)|_")


def exact(completion: str, reference: str) -> Grade:
    """Equal texts."""
    answer, gold = final_answer(completion) or completion.strip(), final_answer(reference) or reference.strip()
    return _compare(answer, answer, gold)


def normalised(completion: str, reference: str) -> Grade:
    """Equal texts after normalisation: SQuAD's rule (arXiv:1606.05250: lower case, no punctuation, no articles, single
    spaces) over NFKC and case folding. Departures: punctuation directly before a digit stays, so that 1.5 is not 15,
    and a text of articles alone keeps them. A reference that is one letter from A to J is an option, as for `choice`.
    """
    if OPTION.fullmatch(reference):
        return choice(completion, reference)
    answer = final_answer(completion) or visible(completion).strip()
    return _compare(answer, normalise(answer), normalise(reference_answer(reference)))


def contains(completion: str, reference: str) -> Grade:
    """The reference stands in the completion after normalisation: as whole words, or as a part of the text in scripts
    that are written without spaces. Says nothing of what else does."""
    if OPTION.fullmatch(reference):
        return choice(completion, reference)
    answer = final_answer(completion) or visible(completion).strip()
    text, gold = (_UNSPACED.sub("", normalise(each)) for each in (answer, reference_answer(reference)))
    if not gold:
        return Grade(Outcome.unparsable_gold, "")
    if not text:
        return Grade(Outcome.no_answer, answer)
    return Grade(Outcome.correct if _holds(f" {text} ", gold) else Outcome.wrong, answer)


def _holds(text: str, gold: str) -> bool:
    at = text.find(gold)
    while at >= 0:
        end = at + len(gold)
        begins = _EDGE.match(gold) or _EDGE.match(text, at - 1)
        if begins and (_EDGE.match(gold, len(gold) - 1) or _EDGE.match(text, end)):
            return True
        at = text.find(gold, at + 1)
    return False


def normalise(text: str) -> str:
    """As `normalised` has it. Unicode's ordering of a long run of combining marks is quadratic: only ASCII is
    normalised outside a worker."""
    folded = unicodedata.normalize("NFKC", visible(text)).casefold()
    kept = _PUNCTUATION.sub(lambda match: "" if unicodedata.category(match[0])[0] == "P" else match[0], folded)
    return " ".join(_ARTICLES.sub(" ", kept).split()) or " ".join(kept.split())


def _compare(answer: str, prediction: str, gold: str) -> Grade:
    if not gold:
        return Grade(Outcome.unparsable_gold, "")
    if not prediction:
        return Grade(Outcome.no_answer, answer)
    return Grade(Outcome.correct if prediction == gold else Outcome.wrong, answer)


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
    """Whether the completion names the option of the reference, A to J: alone (`B`, `(B)`), before its text (`B) 3`),
    behind a marker, in a phrase, or as the only option that it names. Two options at once are no answer."""
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
