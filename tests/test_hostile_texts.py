"""Texts of users and models on the pages that people look at, in a real browser: shown as texts, and nothing runs."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from evals.page import tables
from pipeline.markdown import literal
from tests.browser import Browser, Page, chromium
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
    body = "\n".join(tables("\n".join(["| slice | items |", "| --- | --- |", *rows, "", f"- {MARKER}"])))
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset='utf-8'><body>{body}</body>")
    page = browser.page()
    page.goto((tmp_path / "page.html").as_uri())
    assert_shown_as_texts(page)
