"""A recogniser of the recipe's own: what it gives is masked in admitted rows, and what it cannot read stays out."""

from typing import Any

import pytest

from pipeline.recipe.traces import PersonalData
from pipeline.traces.pii import is_masked
from pipeline.traces.pii.recogniser import recogniser
from pipeline.traces.records import Reason

from ..test_gates import SETTINGS, judged

NAME = "Ada"
CALLS = '[{{"id":"c","type":"function","function":{{"name":"f","arguments":"{}"}}}}]'


def names(text: str) -> list[tuple[int, int]]:
    if "unreadable" in text:
        raise ValueError(text)
    place = text.find(NAME)
    return [] if place < 0 else [(place, place + len(NAME))]


def everything(text: str) -> list[tuple[int, int]]:
    return [(0, len(text)), (0, 1)]


def outside(text: str) -> list[tuple[int, int]]:
    return [(0, len(text) + 1)]


def seen(function: str, **changes: Any) -> dict[str, Any] | Reason:
    own = PersonalData(recogniser=f"{__name__}:{function}")
    return judged(SETTINGS.model_copy(update={"pii": own}), **changes)


def test_what_it_gives_is_masked_in_every_text() -> None:
    row = seen(
        "names",
        messages=[{"role": "user", "content": "I am Ada."}],
        completion="Hello Ada!",
        error="Ada failed",
        tool_calls=CALLS.format("Ada"),
        metadata={"user_consent": True, "expected_answer": "Ada"},
    )
    assert isinstance(row, dict)
    assert (row["completion"], row["messages"][0]["content"]) == ("Hello [PERSONAL]!", "I am [PERSONAL].")
    assert (row["error"], row["tool_calls"], row["reference"]) == (
        "[PERSONAL] failed",
        CALLS.format("[PERSONAL]"),
        None,
    )
    assert is_masked(row["completion"])
    untouched = seen("names", metadata={"user_consent": True, "expected_answer": "4"})
    assert isinstance(untouched, dict) and (untouched["completion"], untouched["reference"]) == ("Yes", "4")


@pytest.mark.parametrize(
    ("function", "changes"),
    [("names", {"completion": "unreadable"}), ("everything", {"tool_calls": CALLS.format("x")}), ("outside", {})],
)
def test_what_it_cannot_read_stays_out(function: str, changes: dict[str, Any]) -> None:
    assert seen(function, **changes) == Reason.PII


def test_only_admitted_rows_are_looked_at() -> None:
    assert seen("names", completion="unreadable", metadata={}) == Reason.CONSENT


@pytest.mark.parametrize("name", ["no_such_package:f", f"{__name__}:absent", f"{__name__}:NAME"])
def test_one_that_is_none_says_what_to_do(name: str) -> None:
    with pytest.raises(ValueError, match=r"^traces\.pii\.recogniser: .*\.$"):
        recogniser(name)
