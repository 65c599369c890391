"""Simulated users over HTTP: who asks what follows from a key, and a failed answer is counted."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pipeline.demo.export import users
from pipeline.demo.users import PEOPLE, ask, requests_of
from pipeline.recipe.traces import DemoSource


class _Seen(ThreadingHTTPServer):
    """Keeps what was asked, and answers each fifth request with 503."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    server: _Seen

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append((self.headers["x-user-id"], body))
            status = 503 if len(self.server.asked) % 5 == 0 else 200
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_requests_follow_from_the_key() -> None:
    source = DemoSource(kind="demo")
    assert requests_of(source, "a", 50) == requests_of(source, "a", 50)
    assert requests_of(source, "a", 50) != requests_of(source, "b", 50)
    assert len(requests_of(source, "a", 50)) == 50


def test_users_ask_a_prompt_several_times_and_agree_as_they_did() -> None:
    source = DemoSource(kind="demo")
    people = {user.id: user for user in users(source.seed, PEOPLE)}
    asked = requests_of(source, "a", 400)
    assert max(Counter(str(request.messages) for request in asked).values()) == 4
    for request in asked:
        assert request.metadata.get("user_consent") == people[request.user].consent
    known = sum("expected_answer" in request.metadata for request in asked)
    assert 300 < known < 380


def test_desk_users_send_the_facts_with_the_question() -> None:
    asked = requests_of(DemoSource(kind="demo", world="desk"), "a", 20)
    assert all(json.loads(request.metadata["contexts"]) for request in asked)
    assert all("expected_answer" not in request.metadata for request in asked)


@pytest.mark.slow
def test_users_wait_for_every_answer_and_count_those_that_fail() -> None:
    requests = requests_of(DemoSource(kind="demo"), "a", 60)
    with _Seen() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        counts = ask(f"http://127.0.0.1:{server.server_address[1]}/v1", requests, in_flight=7)
        server.shutdown()
    assert counts == (60, 12)
    assert Counter(user for user, _ in server.asked) == Counter(request.user for request in requests)
    assert all(body["metadata"]["region"] for _, body in server.asked)


def test_users_of_a_server_that_is_away_get_no_answer() -> None:
    assert ask("http://127.0.0.1:9/v1", requests_of(DemoSource(kind="demo"), "a", 5)) == (5, 5)
