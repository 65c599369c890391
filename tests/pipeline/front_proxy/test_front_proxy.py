"""The proxy as a process: who gets in, what reaches the server behind, and how it comes back."""

import http.client
import socket
import threading
from collections.abc import Callable

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from .conftest import RunningProxy

pytestmark = pytest.mark.slow


def test_nobody_gets_in_without_a_link(proxy: RunningProxy) -> None:
    assert proxy.ask("GET", "/")[0] == 401
    assert proxy.mutation() == 401
    assert proxy.mutation(Cookie=f"front-proxy-{proxy.port}=guessed") == 401
    assert proxy.ask("GET", "/sign-in?token=guessed")[0] == 401
    assert proxy.ask("GET", "/sign-in?token=")[0] == 401
    assert proxy.ask("GET", "/sign-in")[0] == 401
    assert proxy.behind.reached == []


def test_a_link_is_good_for_one_browser(proxy: RunningProxy) -> None:
    target = proxy.link().removeprefix(proxy.root)
    status, headers, _ = proxy.ask("GET", target)
    assert status == 200
    cookie, *attributes = headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} == set(attributes)
    assert proxy.ask("GET", "/", Cookie=cookie)[0] == 200
    assert proxy.ask("GET", target)[0] == 401
    other = proxy.cookie()  # of the link that was printed for the next one
    assert other != cookie
    assert proxy.ask("GET", "/", Cookie=f"theme=dark; {other}")[0] == proxy.ask("GET", "/", Cookie=cookie)[0] == 200


def test_the_cookie_goes_no_further(proxy: RunningProxy) -> None:
    cookie = proxy.cookie()
    proxy.ask("GET", "/a?b=%2F", Cookie=f"theme=dark; {cookie}")
    ((method, target, _, headers),) = proxy.behind.reached
    assert (method, target, headers["cookie"]) == ("GET", "/a?b=%2F", "theme=dark")


def test_raw_requests_that_a_page_could_send_stay_out(proxy: RunningProxy) -> None:
    """Each with a good cookie: what the rules alone refuse."""
    cookie = proxy.cookie()
    assert proxy.mutation(Cookie=cookie) == 200
    proxy.behind.reached.clear()
    refused = [
        proxy.ask("GET", "/graphql?query=mutation%7Blaunch%7D", Cookie=cookie)[0],
        proxy.mutation(Cookie=cookie, Host="rebound.example"),
        proxy.mutation(Cookie=cookie, Origin="https://rebound.example"),
        proxy.mutation(Cookie=cookie, Content_Type="text/plain"),
        proxy.ask("POST", "/graphql?query=mutation%7Blaunch%7D", b"", Cookie=cookie)[0],
    ]
    assert refused == [405, 421, 403, 415, 415]
    assert proxy.behind.reached == []


def test_two_hosts_in_one_request_are_refused(proxy: RunningProxy) -> None:
    head = (
        f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{proxy.port}\r\nHost: rebound.example\r\nCookie: {proxy.cookie()}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.sendall(head.encode())
        assert b" 400 " in connection.recv(1000)
    assert proxy.behind.reached == []


def test_bodies_and_answers_pass_unchanged(proxy: RunningProxy) -> None:
    cookie, body = proxy.cookie(), bytes(range(256)) * 40_000
    status, headers, answer = proxy.ask("PUT", "/files/a%20b", body, Cookie=cookie, Content_Type="application/x-own")
    assert (status, answer, headers["x-own"]) == (200, b'{"path":"/files/a b"}', "kept")
    assert proxy.behind.reached[-1][2] == body
    assert headers["x-frame-options"] == "SAMEORIGIN"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert proxy.ask("GET", "/stream", Cookie=cookie)[2] == b"0\n1\n2\n"


def test_websockets_pass_and_ask_the_same(proxy: RunningProxy) -> None:
    url, cookie = f"ws://127.0.0.1:{proxy.port}/graphql", proxy.cookie()
    options = {"additional_headers": {"Cookie": cookie}, "subprotocols": ["graphql-ws"], "proxy": None}
    with connect(url, origin=proxy.root, **options) as websocket:  # pyright: ignore[reportArgumentType]
        websocket.send("start")
        assert websocket.recv() == "echo start"
        assert websocket.subprotocol == "graphql-ws"
    proxy.behind.reached.clear()
    for origin, headers in (("https://rebound.example", {"Cookie": cookie}), (None, {"Cookie": cookie}),
                            (proxy.root, {})):  # fmt: skip
        with pytest.raises((InvalidStatus, ConnectionClosed)):
            connect(url, origin=origin, additional_headers=headers, proxy=None)  # pyright: ignore[reportArgumentType]
    assert proxy.behind.reached == []


def test_an_answer_ends_with_its_caller(proxy: RunningProxy) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port)
    connection.request("GET", "/endless", headers={"Cookie": proxy.cookie()})
    assert connection.getresponse().read(5) == b"more\n"
    connection.close()
    assert proxy.behind.ended.wait(60)


def test_a_websocket_that_breaks_off_is_closed(start_proxy: Callable[..., RunningProxy]) -> None:
    def break_off(websocket: ServerConnection) -> None:
        websocket.socket.shutdown(socket.SHUT_RDWR)  # without a close frame, as when the server dies

    with serve(break_off, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        proxy = start_proxy(sign_in=False, to=f"http://127.0.0.1:{server.socket.getsockname()[1]}")
        with (
            connect(f"ws://127.0.0.1:{proxy.port}/graphql", origin=proxy.root, proxy=None) as websocket,  # pyright: ignore[reportArgumentType]
            pytest.raises(ConnectionClosed) as closed,
        ):
            websocket.recv(timeout=60)
        server.shutdown()
        thread.join()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1011


def test_a_link_with_more_fields_is_no_link(proxy: RunningProxy) -> None:
    assert proxy.ask("GET", "/sign-in?token=a&b=1&c=1&d=1&e=1")[0] == proxy.ask("GET", "/sign-in?token=a")[0] == 401


def test_a_server_that_is_away_is_said(start_proxy: Callable[..., RunningProxy]) -> None:
    proxy = start_proxy(sign_in=False, to="http://127.0.0.1:1")
    status, headers, body = proxy.ask("GET", "/")
    assert (status, headers["refresh"]) == (502, "2")
    assert b"does not answer" in body


def test_behind_another_proxy_the_rules_alone_decide(start_proxy: Callable[..., RunningProxy]) -> None:
    proxy = start_proxy(sign_in=False)
    assert proxy.mutation() == 200
    assert proxy.mutation(Origin="https://rebound.example") == 403
    assert len(proxy.behind.reached) == 1


def test_it_ends_with_its_parent_and_on_sigterm(proxy: RunningProxy) -> None:
    proxy.process.terminate()
    assert proxy.process.wait(60) in (0, -15)
