"""Which requests pass, by their heads alone."""

import pytest

from pipeline.front_proxy.rules import SiteRules

HOST, ORIGIN = "127.0.0.1:3000", "http://127.0.0.1:3000"
RULES = SiteRules(frozenset({HOST, "dagster.example.com"}), frozenset({ORIGIN}))
JSON = {"content-type": "application/json", "content-length": "20"}
OWN_PAGE = {"origin": ORIGIN, "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}
VISIT = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def status(method: str, target: str, websocket: bool = False, **headers: str) -> int:
    """0 for a request that passes. Names of headers are written with `_` for `-`."""
    path, _, query = target.partition("?")
    head = {"host": HOST} | {name.replace("_", "-"): value for name, value in headers.items()}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in head.items()]
    denial = RULES.denial(method, path, query.encode(), raw, websocket)
    return denial.status if denial else 0


@pytest.mark.parametrize(("method", "target", "headers"), [
    ("GET", "/", {}),
    ("GET", "/runs?view=all", VISIT),
    ("GET", "/graphql", {}),  # the page for queries
    ("POST", "/graphql?op=RootQuery", JSON | OWN_PAGE),
    ("POST", "/graphql", JSON),  # curl
    ("POST", "/graphql", {"content-type": "application/json; charset=utf-8"}),
    ("GET", "/", {"host": "Dagster.Example.com"}),
    ("PUT", "/api/2.0/mlflow-artifacts/artifacts/a", {"content-type": "application/octet-stream"}),
    ("DELETE", "/api/2.0/x", OWN_PAGE),
    ("GET", "/main.js", {"sec-fetch-site": "same-origin", "sec-fetch-dest": "script"}),
])  # fmt: skip
def test_what_a_person_and_the_own_page_ask_passes(method: str, target: str, headers: dict[str, str]) -> None:
    assert status(method, target, **headers) == 0


@pytest.mark.parametrize(("method", "target", "headers", "expected"), [
    ("GET", "/graphql?query=mutation{x}", {}, 405),
    ("HEAD", "/graphql?query=mutation{x}", {}, 405),
    ("GET", "/prefix/graphql/?query=mutation{x}", {}, 405),
    ("GET", "/graphql", VISIT, 403),
    ("POST", "/graphql", JSON | {"host": "rebound.example"}, 421),
    ("GET", "/", {"host": ""}, 421),
    ("GET", "/", {"host": "127.0.0.1:3001"}, 421),
    ("GET", "/", {"host": "127.0.0.1"}, 421),
    ("POST", "/graphql", JSON | {"origin": "https://rebound.example"}, 403),
    ("POST", "/graphql", JSON | {"origin": "null"}, 403),
    ("POST", "/graphql", JSON | {"origin": "http://127.0.0.1:9999"}, 403),
    ("GET", "/logs", {"origin": "http://localhost:3000"}, 403),
    ("POST", "/graphql", {"content-type": "text/plain", "content-length": "20"}, 415),
    ("POST", "/graphql?query=mutation{x}", {}, 415),
    ("POST", "/graphql", {"content-type": "application/graphql"}, 415),
    ("POST", "/report_asset_materialization/a", {"content-type": "text/plain;charset=utf-8"}, 415),
    ("POST", "/ajax-api/2.0/mlflow/runs/delete", {"content-type": "application/x-www-form-urlencoded"}, 415),
    ("POST", "/ajax-api/2.0/mlflow/runs/delete", {"content-type": "Multipart/Form-Data; boundary=x"}, 415),
    ("POST", "/ajax-api/2.0/mlflow/runs/delete", {"content-length": "20"}, 415),
    ("POST", "/ajax-api/2.0/mlflow/runs/delete", {"transfer-encoding": "chunked"}, 415),
    ("GET", "/image", {"sec-fetch-site": "cross-site", "sec-fetch-dest": "image", "sec-fetch-mode": "no-cors"}, 403),
    ("GET", "/", {"sec-fetch-site": "same-site", "sec-fetch-dest": "script", "sec-fetch-mode": "no-cors"}, 403),
    ("GET", "/", VISIT | {"sec-fetch-dest": "iframe"}, 403),
    ("POST", "/x", JSON | VISIT, 403),
    ("TRACE", "/", {}, 405),
    ("PROPFIND", "/", {}, 405),
])  # fmt: skip
def test_what_another_page_can_send_is_denied(method: str, target: str, headers: dict[str, str], expected: int) -> None:
    assert status(method, target, **headers) == expected


@pytest.mark.parametrize("name", ["host", "origin", "content-type", "sec-fetch-site"])
def test_a_deciding_header_is_there_once(name: str) -> None:
    values = {"host": HOST, "origin": ORIGIN, "content-type": "application/json", "sec-fetch-site": "same-origin"}
    head = [(key.encode(), value.encode()) for key, value in values.items()]
    assert RULES.denial("POST", "/graphql", b"", head) is None
    twice = RULES.denial("POST", "/graphql", b"", [*head, (name.encode(), values[name].encode())])
    assert twice is not None and twice.status == 400


@pytest.mark.parametrize(("headers", "expected"), [
    ({"origin": ORIGIN}, 0), ({}, 403), ({"origin": "https://rebound.example"}, 403), ({"origin": "null"}, 403),
    ({"origin": ORIGIN, "host": "rebound.example"}, 421),
])  # fmt: skip
def test_a_websocket_says_whose_page_it_is(headers: dict[str, str], expected: int) -> None:
    assert status("GET", "/graphql", websocket=True, **headers) == expected
