import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.traces.pii import BINARY, Unmaskable, mask, mask_value, pseudonym

EMAIL, CARD, IBAN, IP = "alice.b+c@mail.example.com", "4111 1111 1111 1111", "GB82 WEST 1234 5698 7654 32", "192.0.2.7"
PERSONAL = {
    EMAIL: "[EMAIL]",
    "josé@exämple.com": "[EMAIL]",
    "+44 20 7946 0958": "[PHONE]",
    "(212) 555-0187": "[PHONE]",
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
    "o'brien@example.com": "[EMAIL]",
    "alice%40example.com": "[EMAIL]",
    "2001:db8::8a2e:370:7334": "[IP]",
    "fe80::1": "[IP]",
    "900101-1234568": "[RRN]",
    "9001011234568": "[RRN]",
    "201105-3123456": "[RRN]",  # born after the check digit was dropped
    "850315-6123456": "[RRN]",  # a foreigner
    "ghp_" + "a1B2" * 9: "[API_KEY]",
    "sk_live_" + "aB12" * 6: "[API_KEY]",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-DEF_123": "[API_KEY]",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----": "[PRIVATE_KEY]",
    "13812345678": "[PHONE]",
    "090-1234-5678": "[PHONE]",
    "01 23 45 67 89": "[PHONE]",
    "(0113) 496 0123": "[PHONE]",
    "01632960123": "[PHONE]",
    "212-555-0187x123": "[PHONE]",
    "+49 (0) 3090 1820": "[PHONE]",
    "8 (912) 345-67-89": "[PHONE]",
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
        "12345678 +87654321 = 99999999",
        "41111111-11111111 = 30000000",
        "14 = 13812345678 - 13812345664",
        "react@18.2.0 and f(A@B.T)",
        "x[1::2], dead::beef, std::max, 10:30:45",
        "901301-1234567",  # no such month
        "9001011234567",  # bare, and its check digit is wrong
        "0306406152, 978-0-306-40615-7",
        "550e8400-e29b-41d4-a716-446655440000",
        "commit 356a192b7913b04c54574d18c28d46e6395428ab of the secret",
        "05-01-2026 10:30, 05/01/2026 23",
        "from 12 1990-2000",
        "What is 800-100-2000? It is -1300.",
        "the sequence 123 456 7890",
        "800-100-2000",
        "Compute 219-09-9999.",
        "4111111111111111 * 2 = 8222222222222222",
        "What is 01632960123 + 5?",
        "Open it with this@MainActivity.start(intent), or return@launch.first",
        "scores = q@k.transpose(-2, -1) and x@weight.to(device)",
        "git clone git@host.example.org:a/b.git",
        r"a quoted \n@app.route('/x')",
        "Version 1.84.1.0 of section 3.2.1.4; versions 1.2.3.4, 1.2.3.5 and 1.2.3.6",
        "```python\nsend('alice@example.com', '192.0.2.7')\n```",
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
        "219\u221209\u22129999",
        "alice\u202e@example.com",
        "al\ufe0fice@example.com",
        r"alice\u0040example.com",
        r"alice\\u0040exam\u200bple.com",
        "card_4111111111111111",
        r"\n4111111111111111",
    ],
)
def test_a_disguise_does_not_help(text: str) -> None:
    masked = mask(f"see {text} now")
    assert masked in {"see [EMAIL] now", "see [CARD] now", "see [SSN] now", "see card_[CARD] now", r"see \n[CARD] now"}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("my ssn is 219 09 9999", "my ssn is [SSN]"),
        ("phone: 91234567", "phone: [PHONE]"),
        ("Call 212-555-0187 or 212.555.0188", "Call [PHONE] or [PHONE]"),
        ("212 555 0187 is my number", "[PHONE] is my number"),
        (" 212-555-0187\n", " [PHONE]\n"),  # a text of its own
        ("전화번호는 91234567 입니다", "전화번호는 [PHONE] 입니다"),
        ("secret = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "secret = [AWS_KEY]"),
        ("Authorization: Bearer abcdefghij0123456789", "Authorization: Bearer [API_KEY]"),
        ("Write to ada@example.de(privat), ada@example.com(x)", "Write to [EMAIL](privat), [EMAIL](x)"),
        ("card 4111 1111 1111 1111 + 12", "card [CARD] + 12"),
        ("4111 1111 1111 1111 - 12/27", "[CARD] - 12/27"),
        ("IP version 4: connect to 192.0.2.7", "IP version 4: connect to [IP]"),
        ("```\nnot closed alice@example.com", "```\nnot closed [EMAIL]"),
        ("```\nx\n```\nalice@example.com", "```\nx\n```\n[EMAIL]"),
        ("```\nkey = sk-proj-abcdefghijklmnop1234\n```", "```\nkey = [API_KEY]\n```"),
        ("NO93 8601 1117 947 THEN pay it", "[IBAN] THEN pay it"),
    ],
)
def test_the_words_around_it_tell(text: str, masked: str) -> None:
    assert mask(text) == masked


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
    assert mask_value(tree) == {
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


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=20), st.sampled_from([*PERSONAL]))
def test_personal_data_never_survives_among_other_words(around: str, personal: str) -> None:
    assert personal not in mask(f"{around} ; {personal} ; {around}")
