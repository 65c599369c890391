from __future__ import annotations

from typing import Any

import pytest

from evals.languages import drifted, language, prompt_languages
from evals.suites import Item, Suite

ENGLISH = "How many apples has Anna left after she has eaten three of them?"
GERMAN = "Wie viele Äpfel hat Anna noch, nachdem sie drei davon gegessen hat?"


@pytest.mark.parametrize(("text", "code"), [(ENGLISH, "en"), (GERMAN, "de"), ("How many?", ""), ("12 " * 40, "")])
def test_language_is_told_of_texts_that_are_long_enough(text: str, code: str) -> None:
    assert language(text) == code


@pytest.mark.parametrize(
    ("answer", "asked_in", "expected"),
    [(GERMAN, "en", True), (ENGLISH, "en", False), ("#### 12", "en", None), (GERMAN, "", None)],
)
def test_drift_counts_only_where_both_can_be_told(answer: str, asked_in: str, expected: bool | None) -> None:
    assert drifted(answer, asked_in) is expected


def test_a_language_of_few_prompts_is_none_of_the_suite() -> None:
    def suite(german: int) -> Suite:
        texts = [GERMAN] * german + [ENGLISH] * (100 - german)
        return Suite(name="s", items=tuple(_item(number, text) for number, text in enumerate(texts)))

    assert prompt_languages(suite(4)) == ("en",)
    assert prompt_languages(suite(5)) == ("de", "en")


def _item(number: int, text: str) -> Item:
    fields: dict[str, Any] = {"cluster": str(number), "reference": "1", "slice": ""}
    return Item(id=f"{number:03d}", messages=[{"role": "user", "content": text}], **fields)
