"""Texts of users and models on the pages that people look at, in a real browser: shown as texts, and nothing runs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from markdown_it import MarkdownIt

from assets.report import write_report
from evals import page as evaluation_page
from evals.report import to_html
from evals.results import EvalSample
from evals.suites import Item
from pipeline.core.markdown import literal
from pipeline.core.storage import Store
from pipeline.rewards import reviews
from pipeline.rewards.examples import LabelSample, chat
from pipeline.rewards.examples import page as label_page
from pipeline.rewards.verifiers.outcome import Outcome
from pipeline.rollout.record import Phase, RolloutStep, append, step_event
from tests.assets.laid import Laid, recipe_of
from tests.browser import Browser, Page, chromium
from tests.pipeline.rollout.conftest import BASE, NAME, iteration_over
from tests.ports import held_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BIN = Path(sys.executable).parent
UP_S = 240
RUNS = "window.ran=1;alert(1)"
HOSTILE = (
    f"<script>{RUNS}</script>",
    f'<img src=x onerror="{RUNS}">',
    f'<svg onload="{RUNS}">',
    f"[link](javascript:{RUNS})",
    "![beacon](http://127.0.0.1:9/beacon.png)",
    f'<iframe srcdoc="<script>{RUNS}</script>">',
    "=HYPERLINK(1)",
)
MARKER = "the end of the hostile texts"
ESCAPED = "\n".join(f"- {literal(text)}" for text in (*HOSTILE, MARKER))


def assert_shown_as_texts(page: Page) -> None:
    """Each is there to be read, nothing ran, and nothing is there that would run, or ask another server, at a click."""
    page.wait_for(f"document.body.innerText.includes({MARKER!r})")
    assert page.evaluate("window.ran === undefined")
    assert page.dialogs == []
    live = "a[href^='javascript:'], iframe[srcdoc], [onerror], [onload], img[src*='beacon']"
    assert page.evaluate(f'document.querySelectorAll("{live}").length') == 0
    value = page.evaluate("document.body.innerText").replace("\u2060", "")
    assert [text for text in HOSTILE if text not in value] == []


@contextmanager
def server(folder: Path, command: list[str], health: str) -> Iterator[None]:
    environment = {**os.environ, "DAGSTER_HOME": str(folder), "PWD": str(folder)}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + UP_S
        while True:
            assert process.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()[-3000:]
            try:
                if httpx2.get(health, trust_env=False).status_code == 200:
                    break
            except httpx2.TransportError:
                time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.variant
def test_dagster_shows_hostile_metadata_as_text(tmp_path: Path, browser: Browser) -> None:
    """Of itself it makes a live link of `[link](javascript:...)`."""
    lines = [
        "import dagster as dg",
        f"@dg.asset(metadata={{'text': dg.MetadataValue.md({ESCAPED!r})}})\ndef hostile(): ...",
        "definitions = dg.Definitions(assets=[hostile])",
    ]
    (tmp_path / "hostile.py").write_text("\n".join(lines))
    (tmp_path / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    with held_port() as held:
        port = held.getsockname()[1]
        root = f"http://127.0.0.1:{port}"
        command = [str(BIN / "dagster-webserver"), "-h", "127.0.0.1", "-p", str(port), "-f", "hostile.py"]
        with server(tmp_path, command, f"{root}/server_info"):
            page = browser.page()
            page.goto(f"{root}/assets/hostile?view=overview")
            assert_shown_as_texts(page)


@pytest.mark.variant
def test_mlflow_shows_a_hostile_card_as_text(tmp_path: Path, browser: Browser) -> None:
    from mlflow import MlflowClient

    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=store, registry_uri=store)
    client.create_registered_model("hostile", description=ESCAPED)
    with held_port() as held:
        port = held.getsockname()[1]
        root = f"http://127.0.0.1:{port}"
        command = [str(BIN / "mlflow"), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        with server(tmp_path, [*command, "--backend-store-uri", store], f"{root}/health"):
            page = browser.page()
            page.goto(f"{root}/#/models/hostile")
            assert_shown_as_texts(page)


def test_the_report_page_shows_hostile_slices_as_text(tmp_path: Path, browser: Browser) -> None:
    rows = [f"| {literal(text)} | 1 |" for text in HOSTILE]
    body = to_html("\n".join(["| slice | items |", "| --- | --- |", *rows, "", f"- {MARKER}"]))
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset='utf-8'><body>{body}</body>")
    page = browser.page()
    page.goto((tmp_path / "page.html").as_uri())
    assert_shown_as_texts(page)


TEXT = "\n\n".join((*HOSTILE, MARKER))
ASKED = [
    {"role": "user", "content": TEXT},
    {"role": "assistant", "content": "", "tool_calls": json.dumps(
        [{"id": "1", "type": "function", "function": {"name": HOSTILE[1], "arguments": {HOSTILE[0]: TEXT}}}])},
    {"role": "tool", "content": TEXT, "name": HOSTILE[2], "tool_call_id": "1"},
]  # fmt: skip


def test_examples_of_labels_are_shown_as_text(tmp_path: Path, browser: Browser) -> None:
    """By a renderer that takes HTML, as Markdown says; an id that breaks its line begins no paragraph of its own."""
    store, iteration = Store(tmp_path), iteration_over(BASE)
    sample = LabelSample(
        trace_id=f"t\n\n{TEXT}", prompt=chat(json.dumps(ASKED)), completion=TEXT, final_reward=1.0, why=TEXT
    )
    written = label_page(store, iteration, [sample]).read_text()
    body = MarkdownIt("commonmark", {"html": True}).render(written)
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset='utf-8'><body>{body}</body>")
    page = browser.page()
    page.goto((tmp_path / "page.html").as_uri())
    assert_shown_as_texts(page)


@pytest.mark.parametrize("name", ["sheet", "sheet.txt", "sheet.html.txt"])
def test_review_sheet_opened_in_a_browser_runs_nothing(name: str, tmp_path: Path, browser: Browser) -> None:
    """It is a table of texts, whatever a browser would make of its first bytes."""
    row = {"item": "abc", "trace_id": HOSTILE[0], "prompt": TEXT, "completion": TEXT, "expected": HOSTILE[1]}
    (tmp_path / name).write_bytes(reviews.render([row]))
    page = browser.page()
    page.goto((tmp_path / name).as_uri())
    page.wait_for(f"document.body.innerText.includes({MARKER!r})")
    assert page.evaluate("window.ran === undefined") and page.dialogs == []
    assert page.evaluate("document.contentType") == "text/plain"


def test_changed_answers_are_shown_as_text(tmp_path: Path, browser: Browser) -> None:
    """Prompts, calls, results, references, ids and both answers, on the page of an evaluation."""
    answer = f"{TEXT}<tool_call>{json.dumps({'name': HOSTILE[1], 'arguments': {HOSTILE[0]: TEXT}})}</tool_call>"
    sample = EvalSample(text=answer, tokens=1, finished=True, outcome=Outcome.correct, answer=TEXT)
    item = Item(id=HOSTILE[0], cluster="c", messages=ASKED, reference=HOSTILE[1], slice=HOSTILE[2])
    pair = evaluation_page.AnswerPair(item, sample, sample)
    body = "".join(evaluation_page._section(HOSTILE[0], 1, [pair]))
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset='utf-8'><body>{body}</body>")
    page = browser.page()
    page.goto((tmp_path / "page.html").as_uri())
    assert_shown_as_texts(page)


def test_reports_show_hostile_names_and_reasons_as_text(tmp_path: Path, browser: Browser) -> None:
    """Of people who decide and review, of slices, and of whatever ended an iteration."""
    laid, line = Laid(tmp_path / "data"), " ".join((*HOSTILE, MARKER))
    iteration = laid.begin()
    laid.label(iteration, unlabelled={line: 3}, profiles={line: 1})
    laid.plan(iteration, reasons=(line,), would_change=(line,))
    laid.end(iteration, "held", line)
    laid.world.propose("a")
    append(
        laid.store,
        NAME,
        laid.world.state,
        step_event(laid.world.state, 5.0, RolloutStep(phase=Phase.GATED, reason=line, by=line)),
    )
    write_report(laid.store, recipe_of(laid.store.root), iteration.id, 1_770_000_000.0, tmp_path / "report.html")
    page = browser.page()
    page.goto((tmp_path / "report.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.evaluate("window.ran === undefined") and page.dialogs == []
    live = "script, iframe, img:not([src^='data:image/svg+xml;base64,']), [onerror], [onload]"
    assert page.evaluate(f"document.querySelectorAll({json.dumps(live)}).length") == 0
    assert HOSTILE[0] in page.evaluate("document.body.textContent")
