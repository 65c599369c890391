"""Messages to a real web server: what is told, once or twice but never not at all, and never at a tick's cost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Generator

import pytest

from pipeline.core.storage import Store
from pipeline.rollout import outbox as module
from pipeline.rollout.decision import abort, resume
from pipeline.rollout.notices import due, tell
from pipeline.rollout.record import Phase
from tests.pipeline.rollout.conftest import NAME, POLICY, World
from tests.pipeline.rollout.local_router import LocalRouter
from tests.pipeline.rollout.webhook import Webhook, webhook

SECRET_PROMPT = "my landlord is called"


@pytest.fixture
def hook() -> Generator[Webhook]:
    with webhook() as running:
        yield running


@pytest.fixture
def held(world: World) -> World:
    """Held by three looks whose source failed with a prompt in its message."""
    world.propose("new")
    world.tick_until("observing")
    world.metrics.spoil = failing
    world.tick_until("held")
    return world


def failing(_: object) -> None:
    raise ValueError(f"input_value={SECRET_PROMPT!r} is no row")


def told(world: World, hook: Webhook, after_s: float = 0.0) -> str:
    return tell(world.store, NAME, hook.url, world.now + after_s)


def test_a_rollout_that_is_held_is_told_once(held: World, hook: Webhook) -> None:
    assert told(held, hook) == ""
    held.tick(1000.0)
    assert told(held, hook) == ""
    assert len(hook.messages) == 1
    assert f"{NAME} version 1 (new), rollout {held.state.rollout}: HELD" in hook.messages[0]
    assert "pt rollout status" in hook.messages[0]


def test_no_message_quotes_a_prompt(held: World, hook: Webhook) -> None:
    assert SECRET_PROMPT in held.state.reason
    told(held, hook)
    assert SECRET_PROMPT not in hook.messages[0]
    assert "saw nothing usable" in hook.messages[0]


def test_a_promotion_is_told(world: World, hook: Webhook) -> None:
    world.propose("new")
    world.tick_until("promoted")
    told(world, hook)
    assert len(hook.messages) == 1
    assert "PROMOTED" in hook.messages[0]


def test_a_rollback_is_told_with_what_was_proven(world: World, hook: Webhook) -> None:
    world.metrics.canary = {"quality": 0.2}
    world.propose("new")
    world.tick_until("rolled_back")
    told(world, hook)
    assert len(hook.messages) == 1
    assert "ROLLED BACK: the router reads 0%" in hook.messages[0]
    assert "proven" in hook.messages[0]


def test_an_approval_that_is_wanted_is_told(world: World, hook: Webhook) -> None:
    world.propose("new", policy=POLICY.model_copy(update={"approvers": ("ada",)}))
    for _ in range(5):
        world.tick(50.0)
        told(world, hook)
    assert world.state.phase is Phase.GATED
    assert len(hook.messages) == 1
    assert "APPROVAL WANTED before its first weight: pt rollout approve" in hook.messages[0]


def test_a_router_that_does_not_obey_is_told_once(held: World, hook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalRouter, "apply", lambda self, split: None)
    abort(held.store, NAME, "enough", held.now, "ada")
    for _ in range(20):
        held.tick(50.0)
        told(held, hook)
    assert held.state.phase is Phase.ROLLING_BACK
    assert len(hook.messages) == 2
    assert "NOT OBEYED. It is to go back to 0%" in hook.messages[1]


def test_a_person_s_decision_is_told_with_their_name(held: World, hook: Webhook) -> None:
    abort(held.store, NAME, "<!channel> it is rude & wrong", held.now, "ada")
    held.tick_until("aborted")
    told(held, hook)
    assert "ABORTED: the router reads 0%" in hook.messages[0]
    assert "&lt;!channel&gt; it is rude &amp; wrong (by ada)" in hook.messages[0]


@pytest.mark.slow
def test_what_piled_up_is_one_message(held: World, hook: Webhook) -> None:
    hook.status = 503
    told(held, hook)
    for _ in range(12):
        resume(held.store, NAME, "again", held.now, "ada")
        held.tick_until("held")
    hook.status = 200
    assert told(held, hook, 4000.0) == ""
    assert len(hook.messages) == 2
    lines = hook.messages[1].splitlines()
    assert lines[0].startswith("3 earlier ones: pt rollout history")
    assert len(lines) == 1 + module.MOST_LINES


def test_a_receiver_that_fails_is_asked_less_and_less(held: World, hook: Webhook) -> None:
    hook.status = 500
    assert told(held, hook) == "127.0.0.1 answered 500"
    for second in range(1, 200):
        told(held, hook, float(second))
    assert len(hook.messages) == 4  # at 0, 15, 45 and 105 s
    hook.status = 200
    told(held, hook, 5000.0)
    assert len(hook.messages) == 5
    assert due(held.store, NAME) == []


def test_a_clock_that_jumped_back_silences_nobody(held: World, hook: Webhook) -> None:
    hook.status = 500
    told(held, hook, 1e6)
    hook.status = 200
    assert told(held, hook) == ""
    assert due(held.store, NAME) == []


def test_nothing_is_told_twice_by_two_controllers(held: World, hook: Webhook) -> None:
    ready = threading.Barrier(4)

    def race() -> None:
        ready.wait()
        told(held, hook)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(hook.messages) == 1


def test_what_is_added_while_another_sends_is_told(held: World, hook: Webhook) -> None:
    """Who finds the sender at work leaves; nobody ticks after a rollout's end."""

    def end_it() -> None:
        hook.before = lambda: None
        abort(held.store, NAME, "enough", held.now, "ada")
        held.tick_until("aborted")
        assert told(held, hook) == ""
        assert len(hook.messages) == 1

    hook.before = end_it
    told(held, hook)
    assert "HELD" in hook.messages[0]
    assert "ABORTED" in hook.messages[1]


@pytest.mark.slow
def test_a_sender_killed_before_it_marks_tells_it_again(held: World, hook: Webhook) -> None:
    sender = multiprocessing.get_context("spawn").Process(target=tell, args=(held.store, NAME, hook.url, held.now))
    hook.before = lambda: os.kill(sender.pid or 0, signal.SIGKILL)
    sender.start()
    sender.join()
    assert (sender.exitcode, len(hook.messages)) == (-signal.SIGKILL, 1)
    hook.before = lambda: None
    assert told(held, hook) == ""
    assert told(held, hook) == ""
    assert len(hook.messages) == 2
    assert hook.keys[0] == hook.keys[1], "by its key the receiver can tell that it is the same"


def test_a_receiver_that_never_answers_holds_nobody(
    held: World, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWERS_WITHIN_S", 0.2)
    over = threading.Event()
    hook.before = lambda: over.wait(30) and None
    began = time.monotonic()
    try:
        assert "127.0.0.1" in told(held, hook)
    finally:
        over.set()
    assert time.monotonic() - began < 15
    assert [notice.text for notice in due(held.store, NAME)]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "hooks.example.org/x", "ftp://hooks.example.org", "https://"])
def test_an_address_of_no_web_server_is_refused(url: str, held: World) -> None:
    assert "NOTIFY_URL is no address of a web server" in tell(held.store, NAME, url, held.now)


def test_the_secret_of_an_address_is_in_no_error(held: World, hook: Webhook) -> None:
    hook.status = 403
    errors = [told(held, hook)]
    errors.append(tell(held.store, NAME, "http://127.0.0.1:9/services/secret", held.now + 5000))
    assert all(errors)
    assert not [error for error in errors if "secret" in error]


def test_a_message_goes_nowhere_else(held: World, hook: Webhook) -> None:
    hook.status, hook.location = 302, hook.url.replace("services", "elsewhere")
    assert told(held, hook) == "127.0.0.1 answered 302"
    assert len(hook.messages) == 1


def test_without_an_address_nothing_is_written(held: World) -> None:
    before = sorted(held.store.path("rollout").rglob("*"))
    assert tell(held.store, NAME, "", held.now) == ""
    assert sorted(held.store.path("rollout").rglob("*")) == before


def test_a_first_message_is_not_the_history(held: World, hook: Webhook) -> None:
    abort(held.store, NAME, "enough", held.now, "ada")
    held.tick_until("aborted")
    held.metrics.spoil = lambda look: look
    held.propose("newer", number=2)
    held.tick_until("promoted")
    told(held, hook)
    assert len(hook.messages[0].splitlines()) == 1
    assert "version 2 (newer)" in hook.messages[0]


def test_a_damaged_outbox_fails_no_tick(held: World, hook: Webhook) -> None:
    held.store.path("rollout", NAME, "notices.json").write_text("{")
    assert "notices.json is not a readable Outbox" in told(held, hook)
    assert held.state.phase is Phase.HELD


def test_without_a_rollout_there_is_nothing_to_tell(tmp_path, hook: Webhook) -> None:
    assert tell(Store(tmp_path), NAME, hook.url, 1.0) == ""
    assert hook.messages == []
