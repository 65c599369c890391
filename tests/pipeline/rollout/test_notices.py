"""Messages to a real web server."""

from collections.abc import Generator

import pytest

from pipeline.rollout import notices
from pipeline.rollout.decision import abort
from pipeline.rollout.notices import due, tell
from pipeline.rollout.policy import RolloutPolicy
from pipeline.rollout.record import Phase
from tests.pipeline.rollout.conftest import NAME, POLICY, World, decided
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
    world.observe()
    world.metrics.spoil = failing
    world.tick_until("held")
    return world


def failing(_: object) -> None:
    raise ValueError(f"input_value={SECRET_PROMPT!r} is no row")


def told(world: World, hook: Webhook) -> str:
    return tell(world.store, NAME, hook.url)


def test_a_held_rollout_is_told_once_and_without_a_prompt(held: World, hook: Webhook) -> None:
    assert SECRET_PROMPT in held.state.reason
    assert told(held, hook) == ""
    held.tick(1000.0)
    assert told(held, hook) == ""
    (message,) = hook.messages
    assert f"{NAME} version 1 (new), rollout {held.state.rollout}: HELD" in message
    assert "saw nothing usable" in message and "pt rollout status" in message
    assert SECRET_PROMPT not in message


APPROVED = POLICY.model_copy(update={"approvers": ("ada",)})


@pytest.mark.parametrize(
    ("quality", "policy", "phase", "words"),
    [
        (0.7, POLICY, "promoted", "PROMOTED: it serves all requests"),
        (0.2, POLICY, "rolled_back", "ROLLED BACK: the router reads 0%. Quality fell"),
        (0.7, APPROVED, "gated", "APPROVAL WANTED before its first weight: pt rollout approve"),
    ],
)
def test_an_end_and_an_approval_that_is_wanted_are_told_once(
    world: World, hook: Webhook, quality: float, policy: RolloutPolicy, phase: str, words: str
) -> None:
    world.metrics.canary = {"quality": quality}
    world.propose("new", policy=policy)
    world.tick_until(phase)
    for _ in range(3):
        told(world, hook)
        world.tick(50.0)
    (message,) = hook.messages
    assert words in message


def test_a_router_that_does_not_obey_is_told_once(held: World, hook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalRouter, "apply", lambda self, split: None)
    abort(held.store, NAME, "enough", held.now, "ada")
    for _ in range(20):
        held.tick(50.0)
        told(held, hook)
    assert held.state.phase is Phase.ROLLING_BACK
    assert len(hook.messages) == 2
    assert "NOT OBEYED. It is to go back to 0%" in hook.messages[1]


@pytest.mark.slow
def test_a_receiver_that_fails_gets_the_rest_later(held: World, hook: Webhook) -> None:
    hook.status = 503
    assert told(held, hook) == "127.0.0.1 answered 503"
    for _ in range(12):
        decided(held, "resume")
        held.tick_until("held")
    hook.status = 200
    assert told(held, hook) == ""
    lines = hook.messages[1].splitlines()
    assert lines[0].startswith("3 earlier ones: pt report")
    assert len(lines) == 1 + notices.MOST_LINES
    assert due(held.store, NAME) == []


def test_the_secret_of_an_address_is_in_no_error(held: World, hook: Webhook) -> None:
    hook.status = 302
    errors = [told(held, hook), tell(held.store, NAME, "http://127.0.0.1:9/services/secret")]
    errors.append(tell(held.store, NAME, "hooks.example.org/secret"))
    assert all(errors) and "secret" not in " ".join(errors)
    assert errors[2].startswith("NOTIFY_URL cannot be reached")
