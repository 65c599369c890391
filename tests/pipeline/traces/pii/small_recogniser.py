"""A recogniser of one's own: Presidio's interface, and nothing of Presidio."""

from __future__ import annotations

from typing import NamedTuple

KINDS = {"Ann": ("PERSON", 0.9), "Bob": ("PERSON", 0.2), "Rose Street": ("LOCATION", 0.4), "odd": ("odd one", 1.0)}


class Result(NamedTuple):
    entity_type: str
    score: float


class Names:
    """Finds Ann, and is not sure of Bob; `seen` are the texts that it was given."""

    seen: list[str] = []  # noqa: RUF012 (of the class, for a test to read)

    def analyze(self, text: str, language: str) -> list[Result]:
        assert language == "en"
        self.seen.append(text)
        if "raise" in text:
            raise RuntimeError(text)
        kinds = {
            "Ann": ("PERSON", 0.9),
            "Bob": ("PERSON", 0.2),
            "Rose Street": ("LOCATION", 0.4),
            "odd": ("odd one", 1),
        }
        return [Result(*result) for word, result in kinds.items() for _ in range(text.count(word))]


class Silent:
    """Has no such method."""


class Broken:
    def __init__(self) -> None:
        raise KeyError("no model")
