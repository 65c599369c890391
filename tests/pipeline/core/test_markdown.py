import pytest

from pipeline.core.markdown import literal

HOSTILE = (
    "<script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "[click](javascript:alert(1))",
    "![beacon](https://evil.example/p.png)",
    "a | b | c",
    "&lt;b&gt; &amp;",
    "\\<b>",
    "see https://evil.example or www.evil.example",
    "**bold** _it_ `code` # head ~x~ > quote",
    "",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_literal_text_has_nothing_that_acts(text: str) -> None:
    shown = literal(text)
    assert not [sign for sign in ("<", "https://", "](", "www.") if sign in shown]
    assert "|" not in shown.replace("\\|", "")


def test_a_literal_text_is_one_line() -> None:
    assert literal("a\n\n# b\r\n- c") == r"a \# b - c"
