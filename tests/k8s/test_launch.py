"""The launcher over an API in memory: what comes of a gang, who else launches or is killed, what is asked and told.

How each end of a gang is classified, over what real controllers showed of it, is in test_sequences.py.
"""

from pathlib import Path
from typing import Any

import pytest

from k8s.attempts import GangAttempts
from k8s.classify import Classification
from k8s.follow import AWAY_S, FRUITLESS, GONE_WITHIN_S, NEVER_HEARD_S, NO_PROGRESS_S, GangProgress, Hooks, Timeouts
from k8s.gang import gang_of
from k8s.launch import CHECKPOINTS, delete
from k8s.render import render
from pipeline.training.checkpoints.claims import claim
from pipeline.training.launch import TrainingRefused

from .fake_api import NoAnswer, key_of, refusal
from .world import BACKENDS, Killed, Planned, World, cluster_settings, kill


def followed(world: World, planned: Planned) -> Any:
    """What another launch of the same plan comes to, in the same cluster."""
    again = World()
    again.objects, again.script = world.objects, [*again.trains(planned)]
    return again.launch(planned.task())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gang_comes_trains_and_ends(planned: Planned, backend: str) -> None:
    world = World()
    world.script += world.trains(planned)
    result = world.launch(planned.task(backend=backend))
    assert planned.attempts() == [(1, "succeeded")]
    assert world.told("running: ") and result == planned.trained()
    again = World()
    assert again.launch(planned.task(backend=backend)) == result
    assert again.asked == []


def test_an_attempt_begins_after_the_pods_of_the_one_before(planned: Planned) -> None:
    world = World()
    world.script += [world.run, lambda: world.add_pod(world.gangs()[0], "left", owned=False), lambda: world.end(1)]
    assert isinstance(world.fails(planned.task()), RuntimeError)
    (left,) = world.pods()
    again = World(*[lambda: None] * 5)
    again.objects = world.objects
    again.script += [lambda: again.objects.pop(key_of("Pod", left["metadata"]["name"])), *again.trains(planned)]
    again.fault = lambda verb, path: AssertionError("two write") if verb == "PATCH" and again.pods() else None
    assert again.launch(planned.task())
    assert planned.attempts() == [(1, "crashed"), (2, "succeeded")]


def test_pods_that_nobody_reaches_do_not_hold_the_launch(planned: Planned) -> None:
    """Their node is cut off: the later attempt has the claim."""
    world = World()
    world.script += [world.run, lambda: world.add_pod(world.gangs()[0], "left", owned=False), lambda: world.end(1)]
    world.fails(planned.task())
    assert world.told("A later attempt fences them off") and world.now > GONE_WITHIN_S
    assert planned.attempts() == [(1, "crashed")]


def test_an_object_of_somebody_else_is_left_as_it_is(planned: Planned) -> None:
    world = World()
    theirs = render(gang_of(planned.plan, Path("/x"), cluster_settings()))[0]
    theirs["metadata"]["labels"] = {"app": "theirs"}
    world.put(key_of("JobSet", theirs["metadata"]["name"]), theirs)
    error = world.fails(planned.task())
    assert isinstance(error, TrainingRefused) and "none of this training's" in str(error)
    assert world.gangs() == [theirs]


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_cancelled_run_deletes_its_gang_an_interrupted_one_not(planned: Planned, cancelled: bool) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    world = World()
    world.script += [world.run, interrupt]
    assert isinstance(world.fails(planned.task(), cancelled=lambda: cancelled), KeyboardInterrupt)
    assert len(world.gangs()) == (0 if cancelled else 1)
    assert followed(world, planned)
    assert planned.attempts() == ([(1, "deleted"), (2, "succeeded")] if cancelled else [(1, "succeeded")])


def test_a_settled_end_is_cleared_away_by_the_next_launch(planned: Planned) -> None:
    kept = GangAttempts(planned.store, planned.plan.iteration)
    kept.current(0.0, lambda number: "a")
    assert kept.end(1, Classification("out_of_memory", "killed")).cause == "out_of_memory"
    assert kept.end(1, Classification("deleted", "")).cause == "out_of_memory", "the first word stands"
    assert followed(World(), planned)
    assert planned.attempts() == [(1, "out_of_memory"), (2, "succeeded")]


@pytest.mark.parametrize("recorded", [True, False], ids=["on record", "by its trainer alone"])
def test_a_gang_that_vanished_unwatched_is_a_new_attempt(planned: Planned, recorded: bool) -> None:
    """Its trainer may have been further than the first start of the attempt, and would refuse to begin again there."""
    world = World()
    if recorded:
        world.script += [kill]
    else:  # killed as the answer came that it is there
        world.lost = lambda verb, path: Killed() if verb == "PATCH" else None
    assert isinstance(world.fails(planned.task()), Killed)
    if not recorded:
        claim(planned.store.path(f"iterations/{planned.plan.iteration}/training"), 1)
    world.objects.clear()
    assert followed(world, planned)
    assert planned.attempts() == [(1, "gone"), (2, "succeeded")]


def test_a_gang_with_checkpoints_is_not_refused_for_waiting(planned: Planned) -> None:
    for kind in (TrainingRefused, RuntimeError):
        world = World()
        world.script += [world.hold]
        error = world.fails(planned.task())
        assert type(error) is kind and "queued: " in str(error) and "couldn't assign flavors" in str(error)
        root = planned.store.path(f"iterations/{planned.plan.iteration}/training")
        (root / "checkpoints" / "step-2").mkdir(parents=True, exist_ok=True)


def test_a_gang_that_no_run_follows_goes_only_while_it_is_held(planned: Planned) -> None:
    """Also where its queue lets it go between the look that saw it held and its deletion."""
    world = World()
    world.script += [world.hold, kill]
    world.fails(planned.task())
    hooks, client = Hooks(log=world.lines.append), world.client()
    world.fault = lambda verb, path: world.let_go() if verb == "DELETE" else None
    assert delete(planned.task(), client, hooks, "no run follows it", held_only=True) is None
    assert len(world.gangs()) == 1
    world.fault = lambda verb, path: None
    assert delete(planned.task(), client, hooks, "no run follows it", held_only=True) is None, "it runs"
    world.hold()
    assert delete(planned.task(), client, hooks, "no run follows it", held_only=True) is not None
    assert world.gangs() == [] and world.told("held in its queue")
    assert delete(planned.task(), client, hooks, "again") is None
    assert planned.attempts() == [(1, "deleted")]


def away(world: World, since: float, until: float) -> None:
    world.fault = lambda verb, path: NoAnswer() if since <= world.now < until else None


def test_an_api_server_that_is_away_for_long_loses_nothing(planned: Planned) -> None:
    world = World()
    world.script += [world.run, *[lambda: None] * 320, *world.trains(planned)[1:]]
    away(world, 1.0, AWAY_S - 300)
    assert world.launch(planned.task())
    assert world.told("waiting for the API server") and len(world.gangs()) == 1


@pytest.mark.parametrize(("since", "patience_s"), [(0.0, NEVER_HEARD_S), (1.0, AWAY_S)])
def test_an_api_server_that_stays_away_ends_the_step_alone(planned: Planned, since: float, patience_s: float) -> None:
    world = World()
    world.script += [world.run] * (since > 0)
    away(world, since, float("inf"))
    error = world.fails(planned.task())
    assert type(error) is RuntimeError and "goes on; run this again" in str(error)
    assert patience_s <= world.now <= patience_s + 2 * planned.task().gang(1).settings.poll_s
    assert planned.attempts() == [(1, "")]


NO_RIGHT = 'jobsets.jobset.x-k8s.io "x" is forbidden: User "launcher" cannot get resource "jobsets" in API group'
QUOTA = 'jobsets.jobset.x-k8s.io "x" is forbidden: exceeded quota: objects, requested: 1, used: 1, limited: 1'


@pytest.mark.parametrize(
    ("message", "verb", "advice"),
    [(NO_RIGHT, "GET", "list all that a launch needs"), (QUOTA, "PATCH", "Raise that ResourceQuota")],
)
def test_a_right_that_is_missing_ends_the_launch(planned: Planned, message: str, verb: str, advice: str) -> None:
    world = World()
    world.fault = lambda method, path: refusal(403, message) if method == verb else None
    error = world.fails(planned.task())
    assert isinstance(error, TrainingRefused) and advice in str(error) and world.now <= 60


def test_an_answer_that_is_lost_makes_no_second_gang(planned: Planned) -> None:
    world, losses = World(), [NoAnswer()]
    world.lost = lambda verb, path: losses.pop() if verb == "PATCH" and losses else None
    world.script += world.trains(planned)
    assert world.launch(planned.task())
    assert len(world.made) == 2 and len(world.gangs()) == 1


@pytest.mark.parametrize("pattern", CHECKPOINTS)
def test_starts_without_a_newer_checkpoint_come_to_an_end(tmp_path: Path, pattern: str) -> None:
    progress = GangProgress(lambda: {str(path) for each in CHECKPOINTS for path in tmp_path.glob(each)})
    assert progress.started(3 * FRUITLESS), "starts before this launch"
    for starts in range(3 * FRUITLESS, 8 * FRUITLESS):
        if starts % (FRUITLESS - 1) == 0:
            (tmp_path / pattern.replace("*", f"{starts:06}")).mkdir(parents=True)
        assert progress.started(starts)
        assert progress.started(starts), "a look between two starts counts for nothing"
    assert not progress.started(9 * FRUITLESS)


def test_each_state_has_its_patience() -> None:
    """Time in a state counts from the look that saw it; a bad pull after a long wait for quota has its own minutes."""

    def ends(causes: str, start_timeout_s: float = 7200.0, timeout_s: float = 1e6, step_s: float = 60.0) -> list[str]:
        """What each look at a minute's distance says, "" to go on."""
        patience = Timeouts(start_timeout_s, timeout_s, 0.0)
        looks = [patience.spent(Classification(c, "it"), step_s * n) for n, c in enumerate(causes.split())]  # type: ignore[arg-type]
        return [look.cause if look else "" for look in looks]

    waited = ends("queued " * 100 + "image running")
    assert waited == [""] * 102
    minutes = int(NO_PROGRESS_S / 60)
    for cause in ("image", "volume", "no_queue", "forbidden"):
        assert ends(f"{cause} " * (minutes + 2)) == [""] * (minutes + 1) + [cause]
    assert ends("queued starting no_capacity restarting", start_timeout_s=120) == ["", "", "", "restarting"]
    assert ends("running running leaving running running", timeout_s=150)[-1] == "timed_out"
