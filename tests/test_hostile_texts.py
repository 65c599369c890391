"""Texts of users and models on the pages that people look at: shown as texts, and nothing of them runs."""

from html.parser import HTMLParser

from markdown_it import MarkdownIt

from evals.report import to_html
from pipeline.core.markdown import literal

HOSTILE = (
    "<script>alert(1)</script>", '<img src=x onerror="alert(1)">', '<svg onload="alert(1)">',
    "[link](javascript:alert(1))", "![beacon](http://127.0.0.1:9/beacon.png)",
    '<iframe srcdoc="<script>alert(1)</script>">', "=HYPERLINK(1)", "a | b | c", "&lt;b&gt; &amp;", "\\<b>",
    "**bold** _it_ `code` # head ~x~ > quote",
)  # fmt: skip


class ShownPage(HTMLParser):
    """What a browser makes of a page: its text, and what of it would run or ask another server."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.live = "", list[str]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "img", "svg", "iframe") or any(
            name.startswith("on") or "javascript:" in (value or "") for name, value in attrs
        ):
            self.live.append(self.get_starttag_text() or tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def assert_shown_as_texts(html: str) -> None:
    page = ShownPage(html)
    assert page.live == []
    assert [text for text in HOSTILE if text not in page.text.replace("\u2060", "")] == []


def rendered(markdown: str) -> str:
    """By a renderer that takes HTML, as Markdown says."""
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)


def test_markdown_of_dagster_and_mlflow_shows_texts() -> None:
    assert_shown_as_texts(rendered("\n".join(f"- {literal(text)}" for text in HOSTILE)))


def test_a_literal_text_is_one_line_without_links() -> None:
    assert literal("a\n\n# b\r\n- c") == r"a \# b - c"
    assert "https://" not in literal("https://evil.example") and "www." not in literal("www.evil.example")


def test_a_reports_slices_are_shown_as_texts() -> None:
    rows = [f"| {literal(text)} | 1 |" for text in HOSTILE]
    assert_shown_as_texts(to_html("\n".join(["| slice | items |", "| --- | --- |", *rows])))
