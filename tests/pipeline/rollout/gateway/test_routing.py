"""Who answers: the split and its lease, the unit, the arm that a caller names; who is let in; and what is counted."""

import json
from pathlib import Path

import pytest

from pipeline.core.door import LOOPBACK, foreign_header
from pipeline.core.storage import Store
from pipeline.rollout.gateway import split as split_module
from pipeline.rollout.gateway.split import SplitWatch, read_split, write_champion, write_split
from pipeline.rollout.router import NO_ROLLOUT, Unsettled
from tests.pipeline.rollout.conftest import split_at
from tests.pipeline.rollout.gateway.world import (
    CANARY,
    CHAMPION,
    NAME,
    UNKNOWN,
    World,
    awaited,
    split_of,
    text_of,
    user_of,
    world,
)


def asked(gateway, user, **more):
    return "canary" if "b" * 12 in text_of(gateway.post(user=user, **more)) else "champion"


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ({"headers": {"x-user-id": "{}"}}, "user"),
        ({"safety_identifier": "{}"}, "user"),
        ({"user": "{}"}, "user"),
        ({"metadata": {"user_id": "{}"}}, "user"),
        ({"headers": {"x-session-id": "{}"}}, "session"),
        ({"prompt_cache_key": "{}"}, "session"),
    ],
    ids=["header", "safety_identifier", "user", "metadata", "session", "prompt_cache_key"],
)
def test_unit_is_the_first_name_that_is_given(gateway, field, kind):
    for arm in ("champion", "canary"):
        answer = gateway.post(**json.loads(json.dumps(field).replace("{}", user_of(arm))))
        marks = gateway.request(answer).marks
        assert (marks["rollout.arm"], marks["rollout.unit_kind"]) == (arm, kind)


@pytest.mark.parametrize(
    "content",
    [b"", b'{"rollout": "rollout-1", "epo', b"[1]", b'{"weights": [1, 2]}', b"\xff\xfe"],
    ids=["empty", "torn", "list", "foreign", "no text"],
)
def test_a_torn_or_foreign_file_leaves_the_split(gateway, content):
    split = gateway.split(95)
    assert asked(gateway, user_of("canary", 95)) == "canary"
    gateway.write_file(content)
    assert asked(gateway, user_of("canary", 95)) == "canary"
    state = gateway.state()
    assert (state.split, "cannot be read as a split" in state.refused) == (split, True)
    assert isinstance(gateway.port.read(), Unsettled)
    after = gateway.split(0)  # the way back is open
    assert gateway.port.read() == after


def test_an_older_epoch_is_not_applied(gateway):
    split = gateway.split(5)
    assert gateway.state().split == split
    gateway.port.apply(split_of(95, split.epoch - 1))
    assert read_split(gateway.store, NAME) == split
    gateway.write_file(split_of(95, split.epoch - 1).model_dump_json().encode())
    state = gateway.state()
    assert (state.split, "older" in state.refused) == (split, True)
    gateway.write_file(split.model_dump_json().encode())


def test_a_weight_is_not_raised_within_its_epoch(gateway):
    """A person lowered it between a tick's look at the router and its renewal of the lease."""
    split = gateway.split(5)
    lowered = split_of(0, split.epoch)
    gateway.port.apply(lowered)
    gateway.port.apply(split)
    assert gateway.port.read() == lowered
    assert gateway.port.read() != gateway.split(5) == gateway.port.read()


def test_a_split_of_a_model_in_no_slot_is_not_in_force(gateway):
    before = gateway.split(5)
    assert gateway.port.read() == before
    gateway.split(25, canary=UNKNOWN)
    read = gateway.port.read()
    assert isinstance(read, Unsettled) and f"No slot serves model {'c' * 12}" in read.reason
    assert gateway.state().split == before
    after = gateway.split(0, canary=UNKNOWN)  # the way back is open, whatever the canary's slot holds
    assert gateway.port.read() == after


def test_only_named_paths_lead_anywhere(gateway):
    for path in ("/v1/load_lora_adapter", "/v1/chat/completions/", "/v1/chat", "/metrics", "/-/", "/v1/embeddings"):
        assert gateway.client.post(path, json={}).status_code in (404, 405), path
    assert not gateway.champion.asked


@pytest.mark.slow
def test_a_candidate_that_gets_a_slot_takes_no_answers_away(tmp_path: Path) -> None:
    """Two slots, and no rollout has asked for anything."""
    with world(tmp_path) as unsplit:
        refused = unsplit.post(user="ada")
        assert refused.status_code == 503 and "No split says which model is the champion" in refused.text
        write_champion(unsplit.store, NAME, CHAMPION, is_rolled_out=True)
        answers = [unsplit.post(user=f"user-{n}") for n in range(8)]
        assert {(answer.status_code, "a" * 12 in text_of(answer)) for answer in answers} == {(200, True)}
        assert unsplit.request(answers[0]).marks["rollout.arm"] == "champion"
        unsplit.split(100)
        assert "b" * 12 in text_of(unsplit.post(user="ada")), "a rollout's first split is obeyed"


@pytest.mark.parametrize(
    ("before", "champion", "is_rolled_out", "after"),
    [
        (None, CHAMPION, False, (CHAMPION, 100, 0)),
        (split_of(5, 1), UNKNOWN, True, (CHAMPION, 95, 1)),
        (split_of(0, 2), UNKNOWN, True, (CHAMPION, 100, 2)),
        (split_of(5, 3), UNKNOWN, False, (CHAMPION, 95, 3)),
        (split_of(0, 7), CHAMPION, False, (CHAMPION, 100, 7)),
        (split_of(0, 7), CANARY, False, (CANARY, 100, 7)),
    ],
    ids=["none yet", "rolled out", "back at 0", "with a canary", "the same", "another base model"],
)
def test_the_champion_serves_where_no_rollout_says_who(tmp_path, before, champion, is_rolled_out, after):
    store = Store(tmp_path)
    if before is not None:
        write_split(store, NAME, before)
    write_champion(store, NAME, champion, is_rolled_out)
    now = read_split(store, NAME)
    assert now is not None and (now.champion, now.champion_weight, now.epoch) == after
    assert now == before or (now.rollout, now.canary) == (NO_ROLLOUT, None)


def test_a_lease_that_nobody_renews_ends(tmp_path, monkeypatch):
    watch, now = SplitWatch(Store(tmp_path), NAME, lambda digest: True), [1000.0]
    monkeypatch.setattr(split_module.time, "time", lambda: now[0])
    write_split(Store(tmp_path), NAME, split_at(50).model_copy(update={"expires_at": 1100.0}))
    for now[0], weight in ((1000.0, 50), (1099.0, 50), (1101.0, 0)):
        split = watch.in_force()
        assert split is not None and split.canary_weight == weight and watch.expired == (weight == 0)


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


@pytest.mark.parametrize("path", ["chat/completions", "feedback"])
@pytest.mark.parametrize("headers", PLANTED.values(), ids=PLANTED.keys())
def test_a_foreign_page_plants_no_row(gateway: World, path: str, headers: dict[str, str]) -> None:
    before = gateway.state().served
    answer = gateway.client.post(f"/v1/{path}", content=BODY, headers=headers)
    assert answer.status_code in (403, 415)
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert (gateway.state().served, gateway.champion.asked) == (before, [])


def test_a_named_host_is_answered_where_it_is_allowed(tmp_path: Path) -> None:
    named = {**JSON, "host": "models.example.org", "origin": "https://models.example.org"}
    with world(tmp_path, allowed_hosts=("models.example.org",)) as gateway:
        gateway.split(5)
        assert gateway.client.post("/v1/chat/completions", content=BODY, headers=named).status_code == 200
        assert gateway.client.get("/v1/models").status_code == 200, "its own names stay"


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
    raw = [(name.encode(), value.encode()) for name, value in headers]
    assert foreign_header({"headers": raw}, (*LOOPBACK, "models.example.org")) in ("host", "origin")


def test_what_is_served_is_counted(gateway) -> None:
    gateway.split(25)
    before = gateway.state()
    for arm in ("champion", "canary", "champion"):
        assert gateway.post(user=user_of(arm, weight=25)).status_code == 200
    awaited(lambda: gateway.state().served == gateway.state().recorded)
    answer, now = gateway.client.get("/-/metrics"), gateway.state()
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert now.served - before.served == 3
    own = {"served_total": now.served, "recorded_total": now.served, "unrecorded_total": 0}
    own |= {"canary_weight_percent": 25, "lease_ended": 0}
    wanted = [f'{name}{{model="desk"}} {value}' for name, value in own.items()]
    wanted += [f'in_flight{{model="desk",slot="{slot.name}"}} 0' for slot in now.slots]
    series = [line for line in answer.text.splitlines() if not line.startswith("#")]
    assert series == [f"preference_tuning_gateway_{each}" for each in wanted] and len(now.slots) == 2
