"""The page: complete in every state, of nothing but itself, and inert whatever a record says."""

import base64
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from assets.report import page_path, report_page, write_report
from evals.gate import Verdict
from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.rollout.record import Phase, RolloutStep, append, step_event
from pipeline.training.result import Health, HealthFinding
from tests.assets.laid import Laid, recipe_of
from tests.pipeline.rollout.conftest import NAME

NOW = 1_770_000_000.0
HOSTILE = "</script></style></title><script>alert(1)</script><img src=x onerror=alert(1)>\"'`{{7*7}}&lt;b&gt;"
TAGS = {
    "html", "head", "meta", "title", "style", "body", "p", "h1", "h2", "h3", "span", "a", "div", "b", "strong", "small",
    "figure", "img", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "dl", "dt", "dd", "details", "summary",
}  # fmt: skip
PLOT = "data:image/svg+xml;base64,"


class Page(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.words = set[str](), set[str](), list[str]()
        self.hrefs, self.plots = list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.hrefs += [value or "" for name, value in attrs if name == "href"]
        self.plots += [value or "" for name, value in attrs if name == "src"]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def laid(tmp_path: Path) -> Laid:
    return Laid(tmp_path / "data")


def page_of(laid: Laid, id: str, *overrides: str) -> Page:
    folder = laid.store.path(layout.iteration(id))
    return Page(report_page(laid.store, recipe_of(laid.store.root, *overrides), id, folder, NOW))


@pytest.mark.slow
def test_a_page_has_every_chapter_and_needs_nothing_but_itself(laid: Laid) -> None:
    page = page_of(laid, laid.roll_out().id)
    for words in (
        "From traces to the dataset", "Labels", "Decision: GRPO", "Training: PASS", "Evaluation: PASS", "Rollout",
        "Cost", "Records", "All iterations", "80 of 100", "60 of 100 traces (75.0% coverage)",
        "enough prompts", "10 steps in", "improvement shown", "as version 1 promoted",
        "the router reads",
    ):  # fmt: skip
        assert words in page.text, words
    assert page.tags <= TAGS and not [name for name in page.attributes if name.startswith("on")]
    assert all("://" not in href and not href.startswith("/") for href in page.hrefs), page.hrefs
    assert len(page.plots) == 6 and all(src.startswith(PLOT) for src in page.plots)
    texts = [ElementTree.fromstring(base64.b64decode(src.removeprefix(PLOT))).itertext() for src in page.plots]
    shown = " ".join(text for each in texts for text in each)
    assert "What the gates let through" in shown and "held_out/accuracy" in shown, "texts, also of plots"


@pytest.mark.slow
def test_hostile_texts_of_records_stay_texts(laid: Laid) -> None:
    finding = HealthFinding(verdict="HOLD", rule="kl", step=1, reason=HOSTILE)
    iteration = laid.begin()
    laid.label(iteration, unlabelled={HOSTILE: 3}, outcomes={HOSTILE: 1})
    laid.plan(iteration, reasons=(HOSTILE,), lacks={"kto": (HOSTILE,)})
    laid.train(iteration, health=Health(verdict="HOLD", findings=(finding,)))
    laid.evaluate(iteration)
    escaped = HOSTILE.replace('"', '\\"')
    for file, before, after in ((layout.EVAL_REPORT, '"even"', f'"{escaped}"'),  # the name of a slice
                                (layout.GATE_VERDICT, "improvement shown", escaped)):  # fmt: skip
        path = laid.store.path(iteration.path(file))
        path.write_text(path.read_text().replace(before, after))
    laid.end(iteration, "held", HOSTILE)
    laid.world.propose("a")
    state = laid.world.state
    append(laid.store, NAME, state, step_event(state, 5.0, RolloutStep(phase=Phase.GATED, reason=HOSTILE, by=HOSTILE)))
    recipe = recipe_of(laid.store.root, "name=<script>alert(1)</script>")
    text = report_page(laid.store, recipe, iteration.id, laid.store.root, NOW)
    page = Page(text)
    assert page.tags <= TAGS and not [name for name in page.attributes if name.startswith("on")]
    assert page.text.count("<script>alert(1)</script>") >= 9, "it is there, as a text"
    assert "<script" not in text and "{{7*7}}" in page.text and all(src.startswith(PLOT) for src in page.plots)


@pytest.mark.slow
@pytest.mark.parametrize("left", ["nothing", "traces", "labels", "plan", "training", "evaluation", "damage"])
def test_a_page_is_made_of_whatever_there_is(laid: Laid, left: str) -> None:
    iteration = laid.begin()
    steps = {"labels": laid.label, "plan": laid.plan, "training": laid.train, "evaluation": laid.evaluate}
    if left == "nothing":
        laid.store.path(iteration.path(layout.GOVERNED)).unlink()
    if left == "damage":
        laid.store.path(iteration.path(layout.LABELS)).write_text("{")
    for name, lay in steps.items():
        if left in steps and list(steps).index(name) <= list(steps).index(left):
            lay(iteration)
    page = page_of(laid, iteration.id)
    assert ("traces (75.0% coverage)" in page.text) == (left in steps)
    assert ("Every gated metric" in page.text) == (left == "evaluation")
    assert ("A record cannot be read" in page.text) == (left == "damage")


@pytest.mark.slow
def test_links_lead_to_files_also_of_a_moved_root(laid: Laid, tmp_path: Path) -> None:
    """And the page of the second says what both gave and cost."""
    first = laid.roll_out("a", 1)
    second = laid.end(laid.until_verdict("b", Verdict.FAIL, "newer"), "refused")
    for iteration in (first, second):
        write_report(laid.store, recipe_of(laid.store.root), iteration.id, NOW)
    moved = Store(shutil.move(laid.store.root, tmp_path / "moved"))
    paths = [page_path(moved, each.id) for each in (first, second)]
    pages = [Page(path.read_text()) for path in paths]
    files = [path.parent / unquote(href) for path, page in zip(paths, pages, strict=True) for href in page.hrefs]
    assert len(files) > 10 and all(file.is_file() for file in files)
    assert pages[1].hrefs.count(f"../{first.id}/report.html") == 1, "in the table of all"
    for words in ("for each +0.01", "1 promoted, 1 refused", "Not in the cost of all"):
        assert words in pages[1].text, words


@pytest.mark.slow
def test_no_text_of_a_user_is_on_a_page(tmp_path: Path, iterations) -> None:
    import pyarrow.parquet as pq

    from tests.loop import deployment

    settings = deployment(iterations.first(tmp_path) / "data")
    store, latest = settings.store(), settings.latest()
    page = write_report(store, settings.recipe(), latest.id, NOW).read_text()
    rows = pq.read_table(store.path(latest.path(layout.LABEL_TABLE)), columns=["completion", "user_id", "trace_id"])
    texts = {text for row in rows.to_pylist() for text in row.values() if text and len(text) > 11}
    assert len(texts) > 100 and not [text for text in texts if text in page]
    assert Page(page).tags <= TAGS
