"""Names and labels from anything."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from k8s.gang import LABEL, NAME, label_value, object_name

DNS_LABEL = r"[a-z](?:[-a-z0-9]*[a-z0-9])?"
VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
NASTY = ["x" * 300, "a\nb", "a\n---\nkind: Secret", "日本語", "-", "9", "A.B_C", " ", "a-", "ß", "\0", "${X}", "1" * 63]
texts = st.text(max_size=300) | st.sampled_from(NASTY)


@given(st.lists(texts, min_size=1, max_size=4), st.integers(12, LABEL))
def test_object_name_is_a_dns_label_within_its_limit(parts, limit):
    assume("-".join(parts).strip("-"))
    name = object_name(*parts, limit=limit)
    assert re.fullmatch(DNS_LABEL, name)
    assert len(name) <= limit
    assert name == object_name(*parts, limit=limit)


@given(texts, texts)
def test_different_texts_have_different_names(one, other):
    assume(one != other and one.strip("-") and other.strip("-"))
    assert object_name("train", one) != object_name("train", other)


@pytest.mark.parametrize(
    ("one", "other"), [("a b", "a-b"), ("A", "a"), ("a--b", "a-b"), ("x" * 50, "x" * 51), ("é", "è")]
)
def test_what_had_to_change_is_told_apart(one, other):
    assert object_name(one) != object_name(other)
    assert label_value(one * 9) != label_value(other * 9)


@given(st.from_regex(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*", fullmatch=True))
def test_a_legal_name_stays(text):
    assume(len(text) <= NAME)
    assert object_name(text) == text


@pytest.mark.parametrize("parts", [(), ("",), ("-", "-"), ("", "", "")])
def test_a_name_of_nothing_is_refused(parts):
    with pytest.raises(ValueError, match="give at least one part"):
        object_name(*parts)


@given(texts)
def test_label_value_is_legal(text):
    value = label_value(text)
    assert re.fullmatch(VALUE, value)
    assert len(value) <= LABEL
    if re.fullmatch(VALUE, text) and len(text) <= LABEL:
        assert value == text
