import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.rewards.judge import fence
from pipeline.rewards.judge.fence import fenced, mark_for, visible

HIDDEN = [
    *"\u200b\u200c\u200d\u2060\ufeff\u00ad\u034f\u061c\u180e\ufe0f\u2028\u2029",
    *(chr(0xE0000 + ord(letter)) for letter in "score"),
    *map(chr, range(0x202A, 0x202F)),  # bidirectional embeddings and overrides
    *map(chr, range(0x2066, 0x206A)),  # and isolates
]
anything = st.text(st.characters(exclude_categories=[]))  # with lone surrogates


@pytest.mark.parametrize("character", HIDDEN, ids=lambda character: f"{ord(character):04X}")
def test_what_is_hidden_is_shown(character: str) -> None:
    assert visible(f"a{character}b") == f"a[U+{ord(character):04X}]b"


@given(anything)
def test_no_control_surrogate_or_bidirectional_mark_is_left(text: str) -> None:
    shown = visible(text)
    shown.encode()  # no lone surrogate
    directions = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs") and c not in "\t\n"]
    assert not [c for c in shown if unicodedata.bidirectional(c) in directions]


@given(anything)
def test_showing_twice_changes_nothing(text: str) -> None:
    assert visible(visible(text)) == visible(text)


@pytest.mark.parametrize(
    "tag",
    [
        "<|im_start|>",
        "<|im_end|>",
        "<|start_header_id|>",
        "<\uff5cUser\uff5c>",
        "</s>",
        "<s>",
        "[INST]",
        "[/INST]",
        "<<SYS>>",
        "<start_of_turn>",
        "<END_OF_TURN>",
        "<think>",
        # Of families that no list here names.
        "<|START_OF_TURN_TOKEN|>",
        "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
        "<|channel>",
        "<channel|>",
        "<minimax:tool_call>",
        "<unused42>",
        "<0x0A>",
        "<SPECIAL_10>",
        "[gMASK]",
        "<sop>",
        "[TOOL_CALLS]",
        "[|assistant|]",
        "]~b]",
        "[e~[",
        "\u25c1think\u25b7",
    ],
)
def test_special_tokens_are_defused_by_their_shape_but_legible(tag: str) -> None:
    shown = visible(f"before {tag} after")
    assert tag not in shown
    assert tag.strip("<>[]/\u25c1\u25b7") in shown
    assert shown.startswith("before ") and shown.endswith(" after")


@pytest.mark.parametrize(
    "text", ["x |> f", "if a < s and s > b", "a <-> b", "a[0] = `b`", "[yes](x)", "예 はい نعم 🙂"]
)
def test_honest_text_is_left_alone(text: str) -> None:
    assert visible(text) == text


def test_a_tag_cannot_hide_behind_a_zero_width_space() -> None:
    assert "<|im_start|>" not in visible("<|im\u200b_start|>").replace("[U+200B]", "\u200b")
    assert visible("a\0b") == "ab"


@given(st.lists(st.text(st.sampled_from("0123456789abcdef\n=")), max_size=3))
def test_no_text_contains_its_mark(texts: list[str]) -> None:
    mark = mark_for(texts)
    assert not [text for text in texts if mark in text]
    assert mark == mark_for(texts)


def test_a_text_that_guesses_its_mark_gets_another() -> None:
    text = "answer"
    for _ in range(3):  # each guess changes the text, and with it the mark
        mark = mark_for([text])
        text = fenced(mark, "answer", text)
        assert mark_for([text]) != mark


def test_a_mark_that_stands_in_the_text_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "MARK_CHARS", 1)
    assert mark_for(["0123456789abcde"]) == "f"
