"""Texts that must be equal, exactly or by meaning of their letters, or hold another. Owns the comparisons.

The committed answer is compared where there is one (answers.py), else the whole text. `exact`: equal but for white
space around. `normalised`: the rule of SQuAD (arXiv:1606.05250: lower case, no punctuation, no articles, single
spaces) over NFKC and case folding, with one departure: punctuation directly before a digit stays, so that 1.5 is not
15 and -5 not 5. Linear time, but for NFKC: Unicode's ordering of a long run of combining marks is quadratic, so that
only ASCII is normalised outside a worker.
"""

from __future__ import annotations

import re
import unicodedata

from pipeline.rewards.verifiers.answers import final_answer, reference_answer, visible
from pipeline.rewards.verifiers.outcome import Grade, Outcome

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = re.compile(r"[^\w\s](?!\d)|_")


def exact(completion: str, reference: str) -> Grade:
    """Equal texts."""
    answer, gold = final_answer(completion) or completion.strip(), final_answer(reference) or reference.strip()
    return _compare(answer, answer, gold)


def normalised(completion: str, reference: str) -> Grade:
    """Equal texts after normalisation."""
    answer = final_answer(completion) or visible(completion).strip()
    return _compare(answer, normalise(answer), normalise(reference_answer(reference)))


def contains(completion: str, reference: str) -> Grade:
    """The reference stands in the completion, as whole words after normalisation. Says nothing of what else does."""
    answer = final_answer(completion) or visible(completion).strip()
    text, gold = normalise(answer), normalise(reference_answer(reference))
    if not gold:
        return Grade(Outcome.unparsable_gold, "")
    if not text:
        return Grade(Outcome.no_answer, answer)
    return Grade(Outcome.correct if f" {gold} " in f" {text} " else Outcome.wrong, answer)


def normalise(text: str) -> str:
    """Lower case, no punctuation but before digits, no articles, single spaces."""
    folded = unicodedata.normalize("NFKC", visible(text)).casefold()
    kept = _PUNCTUATION.sub(lambda match: "" if unicodedata.category(match[0])[0] == "P" else match[0], folded)
    return " ".join(_ARTICLES.sub(" ", kept).split())


def _compare(answer: str, prediction: str, gold: str) -> Grade:
    if not gold:
        return Grade(Outcome.unparsable_gold, "")
    if not prediction:
        return Grade(Outcome.no_answer, answer)
    return Grade(Outcome.correct if prediction == gold else Outcome.wrong, answer)
