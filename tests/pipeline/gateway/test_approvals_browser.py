"""The page of approvals in a real browser behind a proxy, and a form of another site in the same browser."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from pipeline.gateway.approvals import SECRET
from pipeline.recipe.approval import ApprovalProxy
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import Phase
from tests.browser import chromium
from tests.pipeline.gateway.test_approvals import ADA, VALUE, Waiting
from tests.pipeline.gateway.world import NAME, world

pytestmark = [pytest.mark.slow, pytest.mark.variant]


class SignedIn(BaseHTTPRequestHandler):
    """A proxy behind which everybody is ada; under another host name, the site of somebody else."""

    def __init__(self, to: list[str], *rest: object) -> None:
        self.to = to
        super().__init__(*rest)  # pyright: ignore[reportArgumentType]

    def answer(self) -> None:
        port = urlsplit(f"//{self.headers['host']}").port
        if self.path == "/elsewhere":
            form = self.to[1].replace('method="post"', f'method="post" action="http://127.0.0.1:{port}/-/approval"')
            status, kind, body = 200, "text/html", form.encode()
        else:
            length = int(self.headers.get("content-length", "0"))
            passed = {
                n: v for n, v in self.headers.items() if n.lower() in ("origin", "content-type", "sec-fetch-site")
            }
            reply = httpx2.request(
                self.command,
                f"{self.to[0]}{self.path}",
                headers={**passed, **ADA},
                content=self.rfile.read(length),
                trust_env=False,
            )
            status, kind, body = reply.status_code, reply.headers["content-type"], reply.content
        self.send_response(status)
        for name, value in (("content-type", kind), ("content-length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def to() -> list[str]:
    """Where the gateway is, and the form of another site."""
    return []


@pytest.fixture
def port(to: list[str]) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SignedIn, to)) as server:  # pyright: ignore[reportArgumentType]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_a_person_approves_in_a_browser(
    tmp_path: Path, to: list[str], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only on the page itself: the form that a page of another site sends, token and all, is refused."""
    monkeypatch.setenv(SECRET, VALUE)
    (tmp_path / "profile").mkdir()
    proxy = ApprovalProxy(approvers=("ada@example.org",), origin=f"http://127.0.0.1:{port}")
    with world(tmp_path / "data", approval=proxy) as running, chromium(tmp_path / "profile") as browser:
        waiting = Waiting(running)
        to += [running.gateway.url, waiting.page()]
        page = browser.page()
        page.goto(f"http://localhost:{port}/elsewhere")
        page.evaluate("document.querySelector('[name=reason]').value = 'forged'; document.forms[0].submit()")
        assert "of another origin" in page.wait_for("location.hostname === '127.0.0.1' && document.body.innerText")
        assert read_state(running.store, NAME).phase is Phase.GATED
        page.goto(f"http://127.0.0.1:{port}/-/approval")
        page.evaluate(
            "document.querySelector('[name=reason]').value = 'read'; document.querySelector('button').click()"
        )
        page.wait_for("document.title === 'Approved'")
        assert read_state(running.store, NAME).phase is Phase.APPROVED
