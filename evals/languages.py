"""The language of a text, for the guard that answers stay in their prompt's language.

Owns when a language can be told: from 20 letters on, with a confidence of 0.8 (py3langid: 140 languages, offline, a
tenth of a millisecond a text). Where it cannot, the text is not counted.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

from evals.suites import Item, Suite

MIN_LETTERS = 20
MIN_CONFIDENCE = 0.8
MIN_SHARE = 0.05
"""Of the prompts: a language that fewer are in may be a mistake, and makes no suite one of several languages."""


def language(text: str) -> str:
    """ISO 639 code; "" where it cannot be told."""
    if sum(map(str.isalpha, text)) < MIN_LETTERS:
        return ""
    code, confidence = _identifier().classify(text)
    return code if confidence >= MIN_CONFIDENCE else ""


def prompt_language(item: Item) -> str:
    """Of what the user said last."""
    questions = (message["content"] for message in reversed(item.messages) if message["role"] == "user")
    return language(next(questions, ""))


def prompt_languages(suite: Suite) -> tuple[str, ...]:
    """The languages that the suite's prompts are in, in alphabetical order."""
    counts = Counter(map(prompt_language, suite.items))
    return tuple(sorted(code for code, times in counts.items() if code and times >= MIN_SHARE * len(suite.items)))


def drifted(text: str, asked_in: str) -> bool | None:
    """Whether an answer is in another language than its prompt; None where one of them cannot be told."""
    answered_in = language(text) if asked_in else ""
    return answered_in != asked_in if answered_in else None


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
