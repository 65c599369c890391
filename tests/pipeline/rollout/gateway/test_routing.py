"""Who answers: the split, its file, the unit, the arm that a caller names."""

import json
import time

import pytest

from pipeline.core.storage import Store
from pipeline.rollout.gateway.tables import ServedSlot, read_split, write_slots
from pipeline.rollout.router import Split, Unsettled, route
from tests.pipeline.rollout.gateway.world import CANARY, CHAMPION, NAME, UNKNOWN, split_of, text_of, user_of


def asked(gateway, user, **more):
    return "canary" if "b" * 12 in text_of(gateway.post(user=user, **more)) else "champion"


@pytest.mark.slow
def test_users_are_answered_by_their_arm(gateway):
    split = gateway.split(25)
    users = [f"user-{n}" for n in range(60)]
    assert [asked(gateway, user) for user in users] == [route(split, user) for user in users]


def test_weights_33_and_67_are_a_split(gateway):
    split = gateway.split(67)
    users = [f"user-{n}" for n in range(60)]
    assert [asked(gateway, user) for user in users] == [route(split, user) for user in users]


def test_nobody_leaves_the_canary_as_its_weight_rises(gateway):
    users = [*(f"user-{n}" for n in range(60)), user_of("champion", 95)]
    at = {}
    for weight in (5, 25, 95):
        gateway.split(weight)
        at[weight] = {user for user in users if asked(gateway, user) == "canary"}
    assert at[5] < at[25] < at[95] != set(users)


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
@pytest.mark.parametrize("arm", ["champion", "canary"])
def test_unit_is_the_first_name_that_is_given(gateway, field, kind, arm):
    given = json.loads(json.dumps(field).replace("{}", user_of(arm)))
    answer = gateway.post(**given)
    marks = gateway.request(answer).marks
    assert (marks["rollout.arm"], marks["rollout.unit_kind"]) == (arm, kind)


@pytest.mark.slow
def test_requests_without_ids_are_units_of_their_own(gateway):
    answers = [gateway.post() for _ in range(30)]
    rows = [gateway.request(answer) for answer in answers]
    assert {row.marks["rollout.unit_kind"] for row in rows} == {"request"}
    assert len({row.marks["rollout.unit"] for row in rows}) == 30
    assert {row.marks["rollout.arm"] for row in rows} == {"champion", "canary"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "user", ["u" * 10_000, "пользователь-😀", "a\nb", 'quote"d'], ids=["long", "unicode", "break", "quoted"]
)
def test_any_text_names_a_user(gateway, user):
    split = gateway.split(50)
    marks = gateway.request(gateway.post(user=user)).marks
    assert (marks["rollout.arm"], marks["user.id"]) == (route(split, user), user)


@pytest.mark.parametrize("user", ["", "   ", None, {"id": 1}, ["x"], True], ids=str)
def test_what_names_nobody_is_no_user(gateway, user):
    assert gateway.request(gateway.post(**{"user": user})).marks["rollout.unit_kind"] == "request"


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


def test_a_split_of_one_model_twice_is_not_in_force(gateway):
    before = gateway.state().split
    gateway.split(25, canary=CHAMPION)
    assert gateway.state().split == before
    assert "both model aaaaaaaaaaaa" in gateway.state().refused


def test_two_slots_never_hold_one_model(gateway):
    with pytest.raises(ValueError, match="Two slots hold model aaaaaaaaaaaa"):
        write_slots(gateway.store, NAME, [ServedSlot(digest=CHAMPION.digest, url=u, name="x") for u in ("u", "v")])


def test_a_lease_that_ended_leaves_the_champion_alone(gateway):
    user = user_of("canary")
    split = gateway.split(50, expires_at=time.time() + 3600)
    assert asked(gateway, user) == "canary"
    gateway.port.apply(split.model_copy(update={"expires_at": time.time() - 1}))
    assert asked(gateway, user) == "champion"
    state = gateway.state()
    assert (state.expired, state.split and state.split.canary_weight) == (True, 0)
    read = gateway.port.read()
    assert isinstance(read, Unsettled) and "lease" in read.reason
    renewed = split.model_copy(update={"expires_at": time.time() + 3600})
    gateway.port.apply(renewed)
    assert (asked(gateway, user), gateway.port.read()) == ("canary", renewed)


def test_the_file_counts_where_no_gateway_runs(tmp_path, gateway):
    port = type(gateway.port)(Store(tmp_path), NAME, lambda digest: None, lambda url: "")
    assert port.read() is None
    port.apply(split_of(5, 1))
    assert port.read() == split_of(5, 1)


@pytest.mark.parametrize("arm", ["champion", "canary"])
def test_a_pinned_request_is_marked(gateway, arm):
    answer = gateway.post(user=user_of("champion"), headers={"x-rollout-arm": arm})
    assert answer.headers["x-rollout-served-by"] == arm
    marks = gateway.request(answer).marks
    assert (marks["rollout.served_by"], marks["rollout.pinned"]) == (arm, True)


def test_the_page_may_name_the_arm_and_other_pages_not(gateway):
    def status(**headers):
        return gateway.post(headers={"x-rollout-arm": "canary", **headers}).status_code

    assert status(origin=gateway.gateway.url) == 200
    assert status(origin="http://evil.example") == 403
    assert gateway.post(headers={"x-rollout-arm": "both"}).status_code == 400


def test_only_named_paths_lead_anywhere(gateway):
    for path in ("/v1/load_lora_adapter", "/v1/chat/completions/", "/v1/chat", "/metrics", "/-/", "/v1/embeddings"):
        assert gateway.client.post(path, json={}).status_code in (404, 405), path
    assert not gateway.champion.asked


def test_models_and_health_answer(gateway):
    assert gateway.client.get("/v1/models").json()["data"][0]["id"] == NAME
    assert gateway.client.get("/health").status_code == 200


def test_slots_are_asked_for_what_they_serve(gateway):
    gateway.post(user=user_of("canary"), model="gpt-x", metadata={"expected_answer": "4"}, seed=7)
    (body,) = gateway.canary.asked[-1:]
    assert (body["model"], body["seed"], "metadata" in body) == (gateway.canary.name, 7, False)


def test_a_slot_that_moved_is_found(gateway):
    split = gateway.split(50, canary=UNKNOWN)
    assert gateway.state().refused
    slots = [ServedSlot(digest=CHAMPION.digest, url=gateway.champion.url, name=gateway.champion.name)]
    moved = ServedSlot(digest=UNKNOWN.digest, url=gateway.canary.url, name="desk@cccccccccccc")
    try:
        write_slots(gateway.store, NAME, [*slots, moved])
        gateway.port.apply(split)
        assert gateway.port.read() == split
        assert gateway.post(user=user_of("canary")).status_code == 200
        assert gateway.canary.asked[-1]["model"] == "desk@cccccccccccc"
    finally:
        back = ServedSlot(digest=CANARY.digest, url=gateway.canary.url, name=gateway.canary.name)
        write_slots(gateway.store, NAME, [*slots, back])


@pytest.mark.slow
def test_split_without_a_canary_needs_none(gateway):
    gateway.split(0, canary=None)
    assert asked(gateway, user_of("canary")) == "champion"
    assert isinstance(gateway.port.read(), Split)
