import json
import re
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.traces.pii import BINARY, MAX_CHARS, Unmaskable, mask, mask_json, mask_value, pseudonym
from pipeline.traces.pii.columns import mask_column, mask_messages, mask_metadata, pseudonyms
from pipeline.traces.rows import MESSAGE

from .test_pii import PERSONAL

WORDS = st.sampled_from(
    [
        *PERSONAL,
        *("alice\u200b@exam\u200bple.com", "٤١١١١١١١١١١١١١١١", "219\u201309\u20139999", "ssn is 219 09 9999"),
        *(
            "phone: 91234567",
            "secret: wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "A1b2" * 70,
            "\\u0040",
            "\\n4111111111111111",
        ),
        *("你好", "전화", "\u202e", "❤️", "7*2=14.", "2026-01-05T10:30:00.123456Z", "0.00001", "\u2212"),
    ]
)
TEXT = st.lists(WORDS | st.sampled_from([" ", "-", ".", "_", "+", "(", ")", "\n", '"', "\\", "0", "7"]), max_size=8)
TEXTS = TEXT.map("".join) | st.text(max_size=8)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXTS | st.sampled_from(["phone", "user_ssn", "aws_secret", "id"]), inner, max_size=3)
    ),
    max_leaves=6,
)


calls = partial(mask_json, refuse=True)


def by_row(text: str | None, function: Callable[[str], str] = mask) -> tuple[str | None, bool]:
    try:
        return (None if text is None else function(text)), False
    except Unmaskable:
        return BINARY, True


@given(st.lists(st.none() | TEXTS, max_size=6), st.integers(0, 3))
def test_a_column_is_masked_as_its_texts_are(texts: list[str | None], skipped: int) -> None:
    column = pa.array(["@ before", *texts], pa.string()).slice(skipped)
    masked, unmaskable = mask_column(column)
    expected = [by_row(text) for text in column.to_pylist()]
    assert list(zip(masked.to_pylist(), unmaskable.to_pylist(), strict=True)) == expected
    assert masked.type == pa.string()


@pytest.mark.slow
@given(st.lists(st.none() | st.dictionaries(TEXTS, TREES, max_size=3), max_size=4), st.booleans(), st.integers(0, 2))
def test_json_is_masked_as_its_value_is(trees: list[dict[str, object] | None], escaped: bool, skipped: int) -> None:
    texts = [None if tree is None else json.dumps(tree, ensure_ascii=escaped) for tree in trees]
    column = pa.array(texts, pa.string()).slice(min(skipped, len(texts)))
    masked = mask_metadata(column)[0].to_pylist()
    assert masked == [None if text is None else mask_json(text) for text in column.to_pylist()]
    for text, kept in zip(column.to_pylist(), masked, strict=True):
        if text is not None:
            assert json.loads(kept) == mask_value(json.loads(text))


CALLS = st.builds(
    lambda name, arguments, escaped: {
        "id": "c",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=escaped)},
    },
    TEXTS,
    TREES,
    st.booleans(),
)
MESSAGES = st.lists(
    st.none()
    | st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "alice@example.com", None]),
            "content": st.none() | TEXTS,
            "tool_calls": st.none() | st.lists(TREES | CALLS, max_size=2).map(json.dumps),
            "tool_call_id": st.none() | TEXTS,
            "name": st.none() | TEXTS,
        }
    ),
    max_size=3,
)


@given(st.lists(st.none() | MESSAGES, max_size=5), st.integers(0, 3))
def test_messages_are_masked_one_by_one(rows: list[list[dict[str, str | None] | None] | None], skipped: int) -> None:
    column = pa.array([[{"role": "user", "content": "a@b.example"}], *rows], pa.list_(MESSAGE)).slice(skipped)
    masked, unmaskable = mask_messages(column)
    assert masked.type == column.type
    expected: list[tuple[object, bool]] = []
    for row in column.to_pylist():
        refused = False
        for message in row or []:
            for key, text in (message or {}).items():
                message[key], no = by_row(text, calls if key == "tool_calls" else mask)
                refused |= no
        expected.append((row, refused))
    assert list(zip(masked.to_pylist(), unmaskable.to_pylist(), strict=True)) == expected


@given(st.lists(st.none() | TEXTS, max_size=6))
def test_identities_are_replaced_as_they_are_one_by_one(identities: list[str | None]) -> None:
    assert pseudonyms(pa.array(identities, pa.string()))[0].to_pylist() == [pseudonym(i) for i in identities]


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ('{"a": "x"}', '{"a": "x"}'),  # byte for byte, the space included
        (r'{"a":"alice\u0040example.com"}', '{"a":"[EMAIL]"}'),
        (r'{"a":"\n4111111111111111"}', r'{"a":"\n[CARD]"}'),
        ('{"card": 4.111111111111111e15}', '{"card":"[CARD].0"}'),
        (r'{"a":"{\"to\":\"alice\\u0040example.com\"}"}', r'{"a":"{\"to\":\"[EMAIL]\"}"}'),
        ('{"a":"alice@example.com","a":"b"}', '{"a":"b"}'),  # decoding drops what the text still shows
        ('{"phone_number": 91234567, "id": 91234567}', '{"phone_number":"[PHONE]","id":91234567}'),
        ('{"a": "alice@example.com"', "{}"),
        ("[" * 10_000 + "]" * 10_000, "{}"),
        ('{"a": ' * 40 + "1" + "}" * 40, None),
        ('{"a": ' + "9" * 5000 + "}", "{}"),
        (r'{"a":"\ud800 alice@example.com"}', '{"a":"[BINARY]"}'),
    ],
)
def test_json_hides_nothing(raw: str, kept: str | None) -> None:
    result = mask_metadata(pa.array([raw]))[0].to_pylist()[0]
    assert result == kept if kept is not None else BINARY in result


def test_what_cannot_be_read_is_told_of_its_row() -> None:
    rows = [
        [{"role": "user", "content": "hello"}],
        [{"role": "user", "content": "x " * MAX_CHARS}],
        [{"role": "assistant", "content": "", "tool_calls": json.dumps([{"arguments": "A1b2" * 80}])}],
        [{"role": "assistant", "content": "", "tool_calls": r'[{"arguments": "a\u0040'}],
    ]
    masked, unmaskable = mask_messages(pa.array(rows, pa.list_(MESSAGE)))
    assert unmaskable.to_pylist() == [False, True, True, True]
    assert masked[1].as_py()[0]["content"] == BINARY


def test_a_clean_column_is_the_same_object() -> None:
    column = pa.array(["What is 12 + 30?", None, "日本語のテキスト", "x²"])
    assert mask_column(column)[0] is column
    assert not re.search("true", str(mask_column(column)[1]))
