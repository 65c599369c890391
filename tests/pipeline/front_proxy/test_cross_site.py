"""A page of another site in a real browser that is signed in: nothing that it sends changes anything.

The same page is tried on the server without the proxy: what reaches that one proves that the page does what it should.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.browser import Browser, chromium
from tests.variants import one_and_variants

from .conftest import RunningProxy

pytestmark = pytest.mark.slow

PAGE = """<!doctype html><title>other site</title>
<img src="{root}/graphql?query=mutation%7Blaunch%7D">
<script src="{root}/graphql?query=mutation%7Bscript%7D"></script>
<iframe src="{root}/graphql?query=mutation%7Bframe%7D"></iframe>
<iframe name="posted"></iframe>
<form id="form" target="posted" method="post" enctype="text/plain" action="{root}/graphql">
<input name='{{"query": "mutation {{ form }}", "x": "' value='"}}'></form>
<form id="url" target="posted" method="post" action="{root}/graphql?query=mutation%7Burl%7D"></form>
<script>
const json = {{method: "POST", body: '{{"query": "mutation {{ fetch }}"}}', credentials: "include"}};
async function attack() {{
  const tries = [
    fetch("{root}/graphql", {{...json, mode: "no-cors"}}),
    fetch("{root}/graphql", {{...json, headers: {{"content-type": "application/json"}}}}),
    fetch("{root}/report_asset_materialization/traces", {{...json, mode: "no-cors"}}),
    fetch("{root}/secret", {{credentials: "include"}}).then(r => r.text()).then(t => {{ window.read = t; }}),
    new Promise((done, fail) => {{
      const socket = new WebSocket("{root}/graphql".replace("http", "ws"), "graphql-ws");
      socket.onopen = () => {{ window.opened = true; socket.close(); done(); }};
      socket.onerror = fail;
    }}),
  ];
  document.getElementById("form").submit();
  await new Promise(done => setTimeout(done, 500));
  document.getElementById("url").submit();
  await new Promise(done => setTimeout(done, 500));
  navigator.sendBeacon("{root}/graphql?query=mutation%7Bbeacon%7D", "x");
  await Promise.allSettled(tries);
  window.open("{root}/graphql?query=mutation%7Bwindow%7D");
  await new Promise(done => setTimeout(done, 1500));
  return true;
}}
</script>"""


class OtherSite(BaseHTTPRequestHandler):
    def __init__(self, root: str, *rest: object) -> None:
        self.root = root
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        body = PAGE.format(root=self.root).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def attack(browser: Browser) -> Iterator[Callable[[str, str], object]]:
    """Opens the page of the other site, by a name of 127.0.0.1 of its own, and lets it try everything at `root`."""
    servers: list[ThreadingHTTPServer] = []

    def attack(root: str, site: str) -> object:
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), partial(OtherSite, root)))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        page = browser.page()
        page.goto(f"http://{site}:{servers[-1].server_port}/")
        assert page.evaluate("attack()") is True
        return page.evaluate("[window.read, window.opened]")

    yield attack
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("site", one_and_variants(["localhost", "127.0.0.1"]))  # another site, another origin
def test_a_foreign_page_changes_nothing(
    site: str, start_proxy: Callable[..., RunningProxy], browser: Browser, attack: Callable[[str, str], object]
) -> None:
    proxy = start_proxy()
    page = browser.page()
    page.goto(proxy.link())
    page.wait_for("location.pathname === '/' && document.body.innerText.includes('path')")
    own = "fetch('/graphql', {method: 'POST', headers: {'content-type': 'application/json'}, body: '{}'})"
    assert page.evaluate(f"{own}.then(r => r.status)") == 200, "the browser is signed in"
    proxy.behind.reached.clear()
    assert attack(proxy.root, site) == [None, None]
    assert [each for each in proxy.behind.reached if each[1] != "/favicon.ico"] == []  # the own page's, of the browser


@pytest.mark.parametrize("site", one_and_variants(["localhost", "127.0.0.1"]))
def test_the_same_page_reaches_a_server_without_it(
    site: str, start_proxy: Callable[..., RunningProxy], attack: Callable[[str, str], object]
) -> None:
    proxy = start_proxy(sign_in=False)
    address = Path(proxy.behind.server.config.uds or "")
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the server behind, on a port as Dagster's is
        threading.Thread(target=_join, args=(listener, address), daemon=True).start()
        attack(f"http://127.0.0.1:{listener.getsockname()[1]}", site)
        deadline = time.monotonic() + 30
        wanted = ("launch", "script", "frame", "url", "beacon", "window")
        while time.monotonic() < deadline:
            targets = " ".join(target for _, target, _, _ in proxy.behind.reached)
            if all(word in targets for word in wanted):
                break
            time.sleep(0.1)
    assert [word for word in wanted if word not in targets] == []
    assert any(b"mutation { form }" in body for _, _, body, _ in proxy.behind.reached)
    assert any(method == "WEBSOCKET" for method, _, _, _ in proxy.behind.reached)


def _join(listener: socket.socket, address: Path) -> None:
    """Hands the bytes of each connection to the Unix socket and back."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    with suppress(OSError):
        while True:
            caller, _ = listener.accept()
            behind = socket.socket(socket.AF_UNIX)
            behind.connect(str(address))
            for pair in ((caller, behind), (behind, caller)):
                threading.Thread(target=copy, args=pair, daemon=True).start()
