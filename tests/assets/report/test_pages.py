"""The pages: complete in every state, of nothing but themselves, and inert whatever a record says."""

import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from assets.kpi.fold import read_kpi
from assets.kpi.ledgers import read_ledgers
from assets.report.pages import (
    PageFolder,
    history_page,
    history_path,
    iteration_page,
    page_path,
    write_history,
    write_iteration,
)
from evals.gate import Verdict
from pipeline.core import layout
from pipeline.core.estimate import UNKNOWN
from pipeline.core.storage import Store
from pipeline.rewards.records import JudgeReport
from pipeline.rollout.record import Phase, RolloutStep, append, step_event
from pipeline.training.result import Health, HealthFinding
from tests.assets.laid import Laid, recipe_of
from tests.pipeline.rollout.conftest import NAME

NOW = 1_770_000_000.0
HOSTILE = "</script></style></title><script>alert(1)</script><img src=x onerror=alert(1)>\"'`{{7*7}}&lt;b&gt;"
TAGS = {
    "html", "head", "meta", "title", "style", "body", "p", "h1", "h2", "h3", "span", "a", "div", "b", "strong", "small",
    "figure", "figcaption", "svg", "text", "line", "path", "circle", "rect", "polygon", "i", "table", "thead", "tbody",
    "tr", "th", "td", "ul", "li", "dl", "dt", "dd", "details", "summary",
}  # fmt: skip
ADDRESSES = {"href", "src", "srcset", "data", "action", "xlink:href"}


class Page(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.hrefs, self.words = set[str](), set[str](), list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.hrefs += [value or "" for name, value in attrs if name in ADDRESSES]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def laid(tmp_path: Path) -> Laid:
    return Laid(tmp_path / "data")


def of_iteration(laid: Laid, id: str) -> Page:
    place = PageFolder(laid.store, laid.store.path(layout.iteration(id)))
    return Page(iteration_page(recipe_of(laid.store.root), read_ledgers(laid.store, id), place, NOW))


def of_all(laid: Laid) -> Page:
    recipe = recipe_of(laid.store.root)
    return Page(history_page(recipe, read_kpi(laid.store, recipe), PageFolder(laid.store, laid.store.root), NOW))


def test_a_page_has_every_chapter_of_an_iteration(laid: Laid) -> None:
    iteration = laid.roll_out()
    page = of_iteration(laid, iteration.id)
    chapters = ("From traces to training data", "Labels", "Decision: GRPO", "Training", "Evaluation", "Rollout", "Cost")
    assert all(chapter in page.text for chapter in (*chapters, "Lineage"))
    for words in ("80 of 100", "60 of 100 traces of the dataset have a label", "enough prompts", "10 optimiser steps",
                  "improvement shown", "The candidate was promoted as version 1", "the router reads"):  # fmt: skip
        assert words in page.text, words
    assert page.tags <= TAGS


def test_a_page_needs_nothing_but_itself(laid: Laid) -> None:
    iteration = laid.roll_out()
    for page in (of_iteration(laid, iteration.id), of_all(laid)):
        assert not {"script", "link", "iframe", "object", "img", "base"} & page.tags
        assert not [name for name in page.attributes if name.startswith("on")]
        assert all("://" not in href and not href.startswith("/") for href in page.hrefs), page.hrefs


def test_hostile_texts_of_records_stay_texts(laid: Laid) -> None:
    finding = HealthFinding(verdict="HOLD", rule="kl", step=1, reason=HOSTILE)
    judge = JudgeReport(
        id=HOSTILE, model=HOSTILE, attacks_withstood=1, attacks=1, asked=1, remembered=0, abstained={HOSTILE: 1},
        order=UNKNOWN, tokens=1, usd=1.0,
    )  # fmt: skip
    iteration = laid.begin()
    laid.label(iteration, unlabelled={HOSTILE: 3}, profiles={HOSTILE: 1}, judge=judge)
    laid.plan(iteration, reasons=(HOSTILE,), would_change=(HOSTILE,), lacks={"kto": (HOSTILE,)})
    laid.train(iteration, health=Health(verdict="HOLD", findings=(finding,)))
    laid.evaluate(iteration)
    report = laid.store.path(iteration.path(layout.EVAL_REPORT))
    verdict = laid.store.path(iteration.path(layout.GATE_VERDICT))
    escaped = HOSTILE.replace('"', '\\"')
    verdict.write_text(verdict.read_text().replace("improvement shown", escaped))
    report.write_text(report.read_text().replace('"even"', f'"{escaped}"'))  # the name of a slice
    laid.end(iteration, "held", HOSTILE)
    laid.world.propose("a")
    state = laid.world.state
    append(laid.store, NAME, state, step_event(state, 5.0, RolloutStep(phase=Phase.GATED, reason=HOSTILE, by=HOSTILE)))
    recipe = recipe_of(laid.store.root, "name=<script>alert(1)</script>")
    place = PageFolder(laid.store, laid.store.root)
    for text, at_least in (
        (iteration_page(recipe, read_ledgers(laid.store, iteration.id), place, NOW), 8),
        (history_page(recipe, read_kpi(laid.store, recipe), place, NOW), 1),
    ):
        page = Page(text)
        assert page.tags <= TAGS and not [name for name in page.attributes if name.startswith("on")]
        assert page.text.count("<script>alert(1)</script>") >= at_least, "it is there, as a text"
        assert "<script" not in text and "{{7*7}}" in page.text


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
    page = of_iteration(laid, iteration.id)
    assert ("traces of the dataset have a label" in page.text) == (left in steps)
    assert ("Every gated metric" in page.text) == (left == "evaluation")
    assert ("A record cannot be read" in page.text) == (left == "damage")
    assert of_all(laid).text.count(iteration.id) >= 1


def test_a_decision_not_to_train_is_a_page(laid: Laid) -> None:
    iteration = laid.begin()
    laid.label(iteration)
    laid.plan(iteration, method="none", reasons=("too few prompts",))
    laid.end(iteration, "not trained", "too few prompts")
    page = of_iteration(laid, iteration.id)
    assert "Nothing was trained" in page.text and "Decision: do not train now" in page.text


def test_links_lead_to_files_also_of_a_moved_root(laid: Laid, tmp_path: Path) -> None:
    first = laid.roll_out("a", 1)
    second = laid.end(laid.until_verdict("b", Verdict.FAIL, "newer"), "refused")
    recipe = recipe_of(laid.store.root)
    for iteration in (first, second):
        write_iteration(laid.store, recipe, iteration.id, NOW)
    write_history(laid.store, recipe, NOW)
    moved = Store(shutil.move(laid.store.root, tmp_path / "moved"))
    pages = [page_path(moved, first.id), page_path(moved, second.id), history_path(moved)]
    hrefs = {page: Page(page.read_text()).hrefs for page in pages}
    assert all((page.parent / unquote(href)).is_file() for page, found in hrefs.items() for href in found)
    assert f"../{first.id}/report.html" in hrefs[pages[1]], "to the iteration that made its champion"
    assert {f"{first.id}/report.html", f"{second.id}/report.html"} == set(hrefs[pages[2]])


def test_the_history_says_what_a_point_has_cost(laid: Laid) -> None:
    assert "No iteration yet" in of_all(laid).text
    laid.roll_out("a", 1)
    laid.end(laid.until_verdict("b", Verdict.FAIL, "newer"), "refused")
    page = of_all(laid)
    for words in (
        "for each +0.01",
        "1 refused",
        "promoted candidates: 1",
        "Not in these sums",
        "serving of the canary",
    ):
        assert words in page.text, words


@pytest.mark.slow
def test_no_text_of_a_user_is_on_a_page(tmp_path: Path, iterations) -> None:
    import pyarrow.parquet as pq

    from tests.loop import deployment

    settings = deployment(iterations.first(tmp_path) / "data")
    store, latest = settings.store(), settings.latest()
    page = write_iteration(store, settings.recipe(), latest.id, NOW).read_text()
    rows = pq.read_table(store.path(latest.path(layout.LABEL_TABLE)), columns=["completion", "user_id", "trace_id"])
    texts = {text for row in rows.to_pylist() for text in row.values() if text and len(text) > 11}
    assert len(texts) > 100 and not [text for text in texts if text in page]
    assert Page(page).tags <= TAGS
