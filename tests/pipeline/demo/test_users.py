"""Simulated users: who asks what follows from a key, and a failed answer is counted."""

import json
from collections import Counter

from pipeline.demo.export import users
from pipeline.demo.traffic import PEOPLE, ask, requests_of
from pipeline.recipe.traces import DemoSource


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


def test_users_of_a_server_that_is_away_get_no_answer() -> None:
    assert ask("http://127.0.0.1:9/v1", requests_of(DemoSource(kind="demo"), "a", 5)) == (5, 5)
