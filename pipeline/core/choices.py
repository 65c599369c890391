"""Multiple choice: the options of a question under letters in its prompt, and the letter of the right one."""

from collections.abc import Sequence
from typing import Any, cast

LETTERS = "ABCDEFGHIJ"


def options_of(value: Any) -> list[str] | None:
    """The texts of two to ten options: a list, or a list under `text`; None for anything else."""
    held = cast(dict[str, Any], value).get("text") if isinstance(value, dict) else value
    options = cast(list[Any], held) if isinstance(held, list) else []
    return options if 2 <= len(options) <= len(LETTERS) and all(isinstance(each, str) for each in options) else None


def with_options(question: str, options: Sequence[str]) -> str:
    listed = "\n".join(f"{letter}) {option}" for letter, option in zip(LETTERS, options, strict=False))
    return f"{question.strip()}\n\n{listed}\n\nAnswer with the letter of the right option."


def letter_of(answer: Any, options: Sequence[str]) -> str:
    """The letter of an answer given as an index from 0, a letter, or the option's text; else ""."""
    letters = LETTERS[: len(options)]
    if isinstance(answer, int) and not isinstance(answer, bool):
        return letters[answer] if 0 <= answer < len(letters) else ""
    text = answer.strip() if isinstance(answer, str) else ""
    if options.count(text) == 1:
        return letters[list(options).index(text)]
    return text.upper() if len(text) == 1 and text.upper() in letters else ""
