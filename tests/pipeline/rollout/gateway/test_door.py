"""What a page of another site can make a browser send to the gateway, and what programs and the own page send."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.rollout.gateway.asked import BadRequest
from pipeline.rollout.gateway.door import Door
from tests.pipeline.rollout.gateway.world import World, text_of, user_of, world

JSON = {"content-type": "application/json"}
EVIL = "http://evil.example"
BODY = json.dumps({"messages": [{"role": "user", "content": "What is it?"}], "user": user_of("champion")}).encode()
PLANTED = {
    "a script without CORS": {"origin": EVIL, "content-type": "text/plain"},
    "a form": {"origin": EVIL, "content-type": "application/x-www-form-urlencoded"},
    "a frame without an origin": {"origin": "null", "content-type": "text/plain"},
    "a name that resolves here": {**JSON, "host": "evil.example:8400", "origin": "http://evil.example:8400"},
    "that name without an origin": {**JSON, "host": "evil.example"},
    "a server of another port": {**JSON, "origin": "http://127.0.0.1:1"},
    "a browser that sends no origin": {"content-type": "text/plain;charset=UTF-8"},
    "a body of no kind": {},
}


@pytest.mark.parametrize("path", ["chat/completions", "completions", "feedback"])
@pytest.mark.parametrize("headers", PLANTED.values(), ids=PLANTED.keys())
def test_a_foreign_page_plants_no_row(gateway: World, path: str, headers: dict[str, str]) -> None:
    before = gateway.state().counts.served
    answer = gateway.client.post(f"/v1/{path}", content=BODY, headers=headers)
    assert answer.status_code in (403, 415)
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert (gateway.state().counts.served, gateway.champion.asked) == (before, [])


def test_the_own_page_and_programs_are_answered(gateway: World) -> None:
    own = {**JSON, "origin": gateway.gateway.url, "sec-fetch-site": "same-origin"}
    assert text_of(gateway.client.post("/v1/chat/completions", content=BODY, headers=own))
    kind = {"content-type": "application/json; charset=utf-8"}
    assert text_of(gateway.client.post("/v1/chat/completions", content=BODY, headers=kind))
    assert gateway.client.get("/", headers={"origin": gateway.gateway.url}).status_code == 200
    assert gateway.client.get("/-/split", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed (apt-get install curl)")
def test_curl_is_answered(gateway: World) -> None:
    command = ["curl", "-s", f"{gateway.gateway.url}/v1/chat/completions", "-H", "content-type: application/json"]
    done = subprocess.run([*command, "-d", BODY.decode()], capture_output=True, check=True, text=True)
    assert json.loads(done.stdout)["choices"]


def test_a_named_host_is_answered_where_it_is_allowed(tmp_path: Path) -> None:
    named = {**JSON, "host": "models.example.org", "origin": "https://models.example.org"}
    with world(tmp_path, allowed_hosts=("models.example.org",)) as gateway:
        gateway.split(5)
        assert gateway.client.post("/v1/chat/completions", content=BODY, headers=named).status_code == 200
        pinned = {**named, "x-rollout-arm": "canary"}
        assert gateway.client.post("/v1/chat/completions", content=BODY, headers=pinned).status_code == 403
        assert gateway.client.get("/v1/models").status_code == 200, "its own names stay"


@pytest.mark.parametrize("host", [
    "127.0.0.1:8400", "LOCALHOST", "[::1]:8400", "models.example.org", "Models.Example.Org:443",
])  # fmt: skip
def test_a_host_of_ours_is_let_in(host: str) -> None:
    check("GET", [("host", host)])


@pytest.mark.parametrize("headers", [
    [],
    [("host", "")],
    [("host", "127.0.0.1.evil.example")],
    [("host", "127.0.0.1:8400@evil.example")],
    [("host", "evil.models.example.org")],
    [("host", "localhost"), ("host", "evil.example")],
    [("host", "localhost"), ("origin", "http://localhost.evil.example")],
    [("host", "localhost"), ("origin", "http://localhost"), ("origin", EVIL)],
    [("host", "localhost"), ("origin", "")],
])  # fmt: skip
def test_another_host_or_origin_is_not(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(BadRequest) as refused:
        check("GET", headers)
    assert refused.value.status == 403


def check(method: str, headers: list[tuple[str, str]]) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers]
    Door(["models.example.org"]).check({"type": "http", "method": method, "headers": raw})
