"""Launchers that are killed at any call, and two launchers of one plan: they follow one gang and agree.

A rival goes on in the middle of the other's request, as if it were scheduled there.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from k8s.attempts import GangAttempts, LaunchAttempt
from pipeline.core.storage import Store

from .fake_api import Answer, refusal
from .world import Killed, Planned, World, kill


def nth(number: int, answered: bool, world: World) -> None:
    """Have the launcher end at its nth call, before it is sent or after it was answered."""

    def end(verb: str, path: str) -> BaseException | None:
        return Killed() if len(world.asked) == number else None

    if answered:
        world.lost = end
    else:
        world.fault = end


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("number", range(1, 8))
def test_a_launcher_killed_at_any_call_leaves_one_gang(planned: Planned, number: int, answered: bool) -> None:
    world = World()
    nth(number, answered, world)
    world.script += [world.run]
    assert isinstance(world.fails(planned.task()), Killed)
    world.fault = world.lost = lambda verb, path: None
    world.script[:] = [*([world.run] if not world.pods() else []), *world.trains(planned)[1:]]
    assert world.launch(planned.task())
    assert len(set(world.made)) == len(world.gangs()) == 1, "under one name, however often it was applied"
    assert planned.attempts() == [(1, "succeeded")]


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("number", range(1, 7))
def test_a_launcher_killed_while_clearing_leaves_no_second_gang(planned: Planned, number: int, answered: bool) -> None:
    world = World()
    world.script += [lambda: (world.run(), world.end(1), kill())]
    assert isinstance(world.fails(planned.task()), Killed)
    second = World()
    second.objects = world.objects
    nth(number, answered, second)
    second.fails(planned.task())
    for _ in range(2):  # the first may hear of the crash, as the killed one would have
        last = World()
        last.objects, last.script = second.objects, [*last.trains(planned)]
        try:
            assert last.launch(planned.task())
            break
        except RuntimeError:
            continue
    assert planned.attempts() == [(1, "crashed"), (2, "succeeded")]
    assert len(last.gangs()) == 1


HELD = {"counts pods": ("GET", "/pods", 1), "counted pods": ("GET", "/pods", 2), "applies": ("PATCH", "/jobsets/", 1)}
"""A launcher's requests, before which another launcher gets ahead: method, words of the path, which of them."""


def overtaken(world: World, held: str, other: Callable[[], object]) -> None:
    """Let the other launcher go on before that request."""
    method, words, left = HELD[held]
    counts = [left]

    def fault(verb: str, path: str) -> None:
        counts[0] -= verb == method and words in path
        if counts[0] == 0:
            counts[0] -= 1
            world.fault = lambda verb, path: None
            other()

    world.fault = fault


@pytest.mark.parametrize("held", HELD)
def test_a_launcher_overtaken_while_it_makes_follows_the_gang(planned: Planned, held: str) -> None:
    """It saw no gang; the other has made one since, whose pods are no leftover to be waited for."""
    world, first = World(), World()
    first.objects, first.script = world.objects, [first.run, kill]
    overtaken(world, held, lambda: first.fails(planned.task()))
    world.script += [lambda: None, lambda: world.end(1)]
    error = world.fails(planned.task())
    assert type(error) is RuntimeError and "exit code 1" in str(error)
    assert planned.attempts() == [(1, "crashed")]
    assert len({*world.made, *first.made}) == 1


@pytest.mark.parametrize("held", HELD)
def test_a_launcher_overtaken_by_a_whole_attempt_makes_nothing(planned: Planned, held: str) -> None:
    """While it was held the gang came, crashed and was cleared away: it says the same, and no gang comes back."""
    world, first = World(), World()
    first.objects, first.script = world.objects, [first.run, lambda: first.end(1)]
    overtaken(world, held, lambda: first.fails(planned.task()))
    error = world.fails(planned.task())
    assert type(error) is RuntimeError and "exit code 1" in str(error)
    assert world.gangs() == [] and planned.attempts() == [(1, "crashed")]


def test_a_slow_launcher_leaves_a_newer_attempt_alone(planned: Planned) -> None:
    """It looks away while its attempt fails, is cleared away, and another is begun."""
    slow, fast = World(), World()
    task = planned.task(backend="rayjob")
    fast.objects = slow.objects
    fast.script += [fast.run, lambda: fast.end(143, of="submitter"), *fast.trains(planned)]
    slow.script += [lambda: fast.launch(task)]
    assert slow.launch(task)
    assert planned.attempts() == [(1, "preempted"), (2, "succeeded")]


def test_a_gang_that_its_queue_has_changed_meanwhile_is_followed(planned: Planned) -> None:
    """Kueue writes into the worker groups of a RayJob, which is a conflict for who applies it again."""
    world, first, task = World(), World(), planned.task(backend="rayjob")
    first.objects, first.script = world.objects, [first.run, kill]

    def fault(verb: str, path: str) -> Answer | None:
        if verb != "PATCH":
            return None
        first.fails(task)
        world.fault = lambda verb, path: None
        return refusal(409, "conflict with kueue")

    world.fault = fault
    world.script += [lambda: None, *world.trains(planned)[1:]]
    assert world.launch(task)
    assert planned.attempts() == [(1, "succeeded")]


@pytest.mark.parametrize("before", [0, 1], ids=["the first", "one after another"])
def test_two_launchers_that_open_an_attempt_open_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """The other opens it between any look of ours at the records and what we make of it."""
    ours, theirs = (GangAttempts(Store(tmp_path), "x") for _ in range(2))
    for _ in range(before):
        over = {"closed_at": 1.0, "outcome": "crashed"}
        assert theirs.close(theirs.current(0.0, str).model_copy(update=over))
    look = ours.all

    def overtaken() -> Sequence[LaunchAttempt]:
        seen = look()
        theirs.current(0.0, str)
        return seen

    monkeypatch.setattr(ours, "all", overtaken)
    assert ours.current(0.0, str).attempt == before + 1
    assert [each.attempt for each in theirs.all()] == list(range(1, before + 2))
