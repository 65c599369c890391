"""Texts of users and models on the pages that people look at: shown as texts, and nothing of them runs."""

import json
from html.parser import HTMLParser

from markdown_it import MarkdownIt

from evals import page as evaluation_page
from evals.records import EvalSample
from evals.report import to_html
from evals.suites import Item
from pipeline.core.markdown import literal
from pipeline.rewards.verifiers.outcome import Outcome

HOSTILE = (
    "<script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    '<svg onload="alert(1)">',
    "[link](javascript:alert(1))",
    "![beacon](http://127.0.0.1:9/beacon.png)",
    '<iframe srcdoc="<script>alert(1)</script>">',
    "=HYPERLINK(1)",
)
TEXT = "\n\n".join(HOSTILE)
ASKED = [
    {"role": "user", "content": TEXT},
    {"role": "assistant", "content": "", "tool_calls": json.dumps(
        [{"id": "1", "type": "function", "function": {"name": HOSTILE[1], "arguments": {HOSTILE[0]: TEXT}}}])},
    {"role": "tool", "content": TEXT, "name": HOSTILE[2], "tool_call_id": "1"},
]  # fmt: skip


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


def test_a_reports_slices_are_shown_as_texts() -> None:
    rows = [f"| {literal(text)} | 1 |" for text in HOSTILE]
    assert_shown_as_texts(to_html("\n".join(["| slice | items |", "| --- | --- |", *rows])))


def test_changed_answers_are_shown_as_texts() -> None:
    """Prompts, calls, results, references, ids and both answers, on the page of an evaluation."""
    answer = f"{TEXT}<tool_call>{json.dumps({'name': HOSTILE[1], 'arguments': {HOSTILE[0]: TEXT}})}</tool_call>"
    sample = EvalSample(text=answer, tokens=1, finished=True, outcome=Outcome.correct, answer=TEXT)
    item = Item(id=HOSTILE[0], cluster="c", messages=ASKED, reference=HOSTILE[1], slice=HOSTILE[2])
    pair = evaluation_page.ShownPair(item, sample, sample)
    assert_shown_as_texts("".join(evaluation_page._section(HOSTILE[0], 1, [pair])))
