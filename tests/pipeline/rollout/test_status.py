import pytest

from pipeline.rollout.decision import abort
from pipeline.rollout.fold import read_log
from pipeline.rollout.notices import notices, post
from pipeline.rollout.policy import RolloutPolicy
from pipeline.rollout.propose import ChampionState, champion
from pipeline.rollout.record import Phase, read_events
from pipeline.views.rollout import RolloutStatus, share_estimate, status
from tests.pipeline.rollout.conftest import BASE, NAME, POLICY, World
from tests.pipeline.rollout.local_router import LocalRouter
from tests.pipeline.rollout.webhook import webhook


def shown(world: World) -> RolloutStatus:
    serving = champion(world.store, NAME) or ChampionState(model=BASE, version=0, promotions=0)
    return status(NAME, serving, read_log(world.store, NAME), world.router.read(), world.now)


def test_a_held_rollout_is_told_with_what_was_measured_and_why(world):
    world.observe()
    world.tick(90.0)
    world.metrics.spoil = lambda look: None
    world.tick_until("held")
    held_at = world.now
    world.tick(500.0)
    report = shown(world)
    assert report.state == world.state
    assert (report.since, report.weight, report.router, report.wanted_graded) == (held_at, 5, 5, 4131)
    quality = share_estimate(report.state.watch.evidence.canary.quality, report.state.opened.policy)
    assert quality.low is not None and quality.high is not None
    assert quality.low < 0.7 < quality.high
    assert (report.last_look, report.last_look_at) == ("no metrics", world.now)
    assert report.decisions == ("resume", "abort", "rollback")


@pytest.mark.parametrize(
    ("phase", "waits_for"),
    [
        ("proposed", "files of both models"),
        ("gated", "first weight, 5%"),
        ("shifting", "router to read 5%"),
        ("observing", "more answers of the canary"),
        ("held", "resume or abort"),
    ],
)
def test_each_phase_waits_for_something_and_can_be_aborted(world, phase, waits_for):
    if phase == "held":
        world.metrics.spoil = lambda look: None
    world.propose("new")
    world.tick_until(phase)
    report = shown(world)
    assert waits_for in report.waits_for
    assert "abort" in report.decisions
    assert ("resume" in report.decisions) == (phase == "held")


def test_status_of_an_abort_leaves_its_reopening(world):
    world.observe()
    abort(world.store, NAME, "why not", world.now, "operator")
    report = shown(world)
    assert (report.weight, report.router, report.decisions) == (0, 5, ())
    assert (report.waits_for, report.state.reason, report.by) == ("the router to read 0%", "why not", "operator")
    world.tick_until("aborted")
    report = shown(world)
    assert (report.state.phase, report.router, report.decisions) == (Phase.ABORTED, 0, ("reopen",))
    assert (report.state.reason, report.by) == ("why not", "operator")
    assert report.waits_for == "the next candidate that passes the gate"


SECRET_PROMPT = "my landlord is called"


@pytest.fixture
def held(world: World) -> World:
    """Held by three looks whose source failed with a prompt in its message."""
    world.observe()
    world.metrics.spoil = failing
    world.tick_until("held")
    return world


def failing(_: object) -> None:
    raise ValueError(f"input_value={SECRET_PROMPT!r} is no row")


def told(world: World) -> list[str]:
    return [notice.text for notice in notices(read_events(world.store, NAME))]


def test_a_held_rollout_is_told_once_and_without_a_prompt(held: World) -> None:
    assert SECRET_PROMPT in held.state.reason
    held.tick(1000.0)
    (message,) = told(held)
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
    world: World, quality: float, policy: RolloutPolicy, phase: str, words: str
) -> None:
    world.metrics.canary = {"quality": quality}
    world.propose("new", policy=policy)
    world.tick_until(phase)
    for _ in range(3):
        world.tick(50.0)
    (message,) = told(world)
    assert words in message


def test_a_router_that_does_not_obey_is_told_once(held: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalRouter, "apply", lambda self, split: None)
    abort(held.store, NAME, "enough", held.now, "ada")
    for _ in range(20):
        held.tick(50.0)
    assert held.state.phase is Phase.ROLLING_BACK
    assert len(told(held)) == 2
    assert "NOT OBEYED. It is to go back to 0%" in told(held)[1]


def test_the_secret_of_an_address_is_in_no_error() -> None:
    with webhook() as hook:
        assert post(["<!channel> & all"], hook.url) == "" and hook.messages == ["&lt;!channel&gt; &amp; all"]
        hook.status = 302
        urls = (hook.url, "http://127.0.0.1:9/services/secret", "hooks.example.org/secret")
        errors = [post(["held"], url) for url in urls]
    assert all(errors) and "secret" not in " ".join(errors)
    assert errors[0] == "127.0.0.1 answered 302" and errors[2].startswith("NOTIFY_URL cannot be reached")
