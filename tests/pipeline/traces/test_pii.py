from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.traces.pii import BINARY, Unmaskable, mask, mask_tree, pseudonym

EMAIL, CARD, IBAN, IP = "alice.b+c@mail.example.com", "4111 1111 1111 1111", "GB82 WEST 1234 5698 7654 32", "192.0.2.7"
PERSONAL = {
    EMAIL: "[EMAIL]",
    "josé@exämple.com": "[EMAIL]",
    "+44 20 7946 0958": "[PHONE]",
    "(212) 555-0187": "[PHONE]",
    "212-555-0187": "[PHONE]",
    "+4930901820": "[PHONE]",
    CARD: "[CARD]",
    "4111111111111111": "[CARD]",
    "3782-822463-10005": "[CARD]",
    IBAN: "[IBAN]",
    "DE89370400440532013000": "[IBAN]",
    "de89 3704 0044 0532 0130 00": "[IBAN]",
    IP: "[IP]",
    "AKIAIOSFODNN7EXAMPLE": "[AWS_KEY]",
    "sk-proj-abcdefghijklmnop1234": "[API_KEY]",
    "219-09-9999": "[SSN]",
}


@pytest.mark.parametrize("text", PERSONAL)
def test_personal_data_is_replaced_in_its_sentence(text: str) -> None:
    assert mask(f"Mine is {text}, and yours?") == f"Mine is {PERSONAL[text]}, and yours?"
    assert mask(text) == PERSONAL[text]


@pytest.mark.parametrize(
    "text",
    [
        "7*2=14. 14+16=30.\n#### 30",
        "12345678 + 87654321 = 99999999",
        "What is 3x² + ½? ① x\u200by",  # normalising it would change the question
        "4111 1111 1111 1112",  # fails Luhn
        "999.1.2.3",
        "GB83 WEST 1234 5698 7654 32",  # fails mod 97
        "000-12-3456",
        "at 10:30 on 2026-01-05",
        "task-force, risk-adjusted-return-on-capital",
        "",
    ],
)
def test_other_text_stays_exactly_as_it_was(text: str) -> None:
    assert mask(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "alice@example.com",  # full-width
        "alice\u200b@exam\u200bple.com",
        "４１１１ １１１１ １１１１ １１１１",  # noqa: RUF001 - the disguise is the point
        "٤١١١١١١١١١١١١١١١",  # Arabic-Indic digits
        "4111\u20111111\u20131111\u20141111",
        "219\u201309\u20139999",
    ],
)
def test_a_disguise_does_not_help(text: str) -> None:
    assert mask(f"see {text} now") in {"see [EMAIL] now", "see [CARD] now", "see [SSN] now"}


def test_the_word_after_an_iban_stays() -> None:
    assert mask("NO93 8601 1117 947 THEN pay it") == "[IBAN] THEN pay it"


@pytest.mark.parametrize("text", ["data:image/png;base64,iVBORw0KGgo=", "A1b2" * 80, "x " * 600_000])
def test_what_cannot_be_searched_is_refused(text: str) -> None:
    with pytest.raises(Unmaskable, match=r"\.$"):
        mask(text)


def test_a_tree_is_masked_in_values_keys_and_numbers() -> None:
    tree = {
        "a": [EMAIL, {EMAIL: 4111111111111111}],
        "b": None,
        "c": True,
        "d": 1.5,
        "e": "A1b2" * 80,
        "f": int("9" * 300),
    }
    assert mask_tree(tree) == {
        "a": ["[EMAIL]", {"[EMAIL]": "[CARD]"}],
        "b": None,
        "c": True,
        "d": 1.5,
        "e": BINARY,
        "f": BINARY,
    }


def test_an_identity_keeps_its_difference_and_loses_its_name() -> None:
    assert pseudonym("u-17") == "u-17"
    assert pseudonym(None) is None
    names = {pseudonym("alice@example.com"), pseudonym("bruno@example.com"), pseudonym("alice@example.com")}
    assert len(names) == 2
    assert all(name and "@" not in name for name in names)


WORDS = st.sampled_from(
    [*PERSONAL, "and", "7*2=14.", "+", "-", " ", "12", "@", ".", "\u200b", "٤", "\n", "(", "[EMAIL]"]
)


@given(st.lists(WORDS | st.text(max_size=4), max_size=12).map("".join))
def test_masked_text_holds_nothing_more_to_mask(text: str) -> None:
    once = mask(text)
    assert mask(once) == once


@given(
    st.text(
        alphabet=st.characters(
            codec="utf-8",
        ),
        max_size=20,
    ),
    st.sampled_from([*PERSONAL]),
)
def test_personal_data_never_survives_among_other_words(around: str, personal: str) -> None:
    assert personal not in mask(f"{around} ; {personal} ; {around}")
