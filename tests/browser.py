"""A real browser for the tests: headless Chromium over the DevTools protocol."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

STARTS_WITHIN_S = 90
LOADS_WITHIN_S = 90


class Page:
    """A tab."""

    def __init__(self, connection: ClientConnection, session: str, numbers: itertools.count[int]) -> None:
        self._connection, self._session, self._numbers = connection, session, numbers
        self.dialogs: list[str] = []
        """Texts of `alert` and the like: proof that a script ran."""
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._connection.send(
            json.dumps({"id": number, "method": method, "params": parameters, "sessionId": self._session})
        )
        while True:
            message = json.loads(self._connection.recv(timeout=LOADS_WITHIN_S))
            if message.get("method") == "Page.javascriptDialogOpening":
                self.dialogs.append(message["params"]["message"])
                closing = {
                    "id": next(self._numbers),
                    "method": "Page.handleJavaScriptDialog",
                    "params": {"accept": True},
                }
                self._connection.send(json.dumps({**closing, "sessionId": self._session}))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def goto(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for(f"document.readyState === 'complete' && location.href !== 'about:blank' && {json.dumps(url)}")

    def evaluate(self, expression: str) -> Any:
        """The value of a script in the page; promises are awaited. Raises AssertionError with what it throws."""
        done = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait_for(self, expression: str, within_s: float = LOADS_WITHIN_S) -> Any:
        """Until the script's value is true."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                if value := self.evaluate(expression):
                    return value
            except AssertionError:  # between two documents
                pass
            assert time.monotonic() < deadline, self.evaluate("document.documentElement.outerHTML.slice(0, 3000)")
            time.sleep(0.2)


class Browser:
    """One profile: its pages share cookies."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._numbers = connection, itertools.count(1)

    def page(self) -> Page:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        return Page(self._connection, attached["sessionId"], self._numbers)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=LOADS_WITHIN_S))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]


@contextmanager
def chromium(folder: Path) -> Generator[Browser]:
    """A browser with an empty profile in `folder`. Skips where there is none."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += ["--disable-popup-blocking"]
    command += ["--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            deadline = time.monotonic() + STARTS_WITHIN_S
            port_file = folder / "DevToolsActivePort"
            while not port_file.exists() or len(port_file.read_text().splitlines()) < 2:
                assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()[-3000:]
                time.sleep(0.1)
            port, path = port_file.read_text().splitlines()[:2]
            with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None, ping_interval=None) as connection:
                yield Browser(connection)
        finally:
            process.kill()
