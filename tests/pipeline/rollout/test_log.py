"""The log's snapshot: few events are read again, and one that is not of these events and this code is not believed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core import layout
from pipeline.rollout import fold as folding
from pipeline.rollout.fold import SNAPSHOT_EVERY, fold, read_log
from pipeline.rollout.reconcile import audited
from pipeline.rollout.record import Phase, read_events
from tests.pipeline.rollout.conftest import NAME, World

SNAPSHOT = layout.rollout(NAME, "snapshot.json")


@pytest.fixture
def watched(world: World) -> World:
    """A rollout after so many looks that a snapshot is there, and some more."""
    world.observe(dwell_s=(1e6, 1e6, 1e6))
    for _ in range(SNAPSHOT_EVERY + 5):
        world.tick(50.0)
    return world


def test_events_of_the_snapshot_are_not_read_again(watched: World) -> None:
    events, log = read_events(watched.store, NAME), read_log(watched.store, NAME)
    assert log == fold(events)
    assert len(log.events) < 8 < SNAPSHOT_EVERY < len(events), "looks that decided nothing are left out"
    before = [Phase.IDLE, *(event.phase for event in events)]
    decided = [event for phase, event in zip(before, events, strict=False) if audited(phase, event)]
    assert [event for event in decided if event not in log.events] == []
    watched.store.path("rollout", NAME, "events", "000002.json").write_text("{}", encoding="utf-8")
    assert read_log(watched.store, NAME) == log
    watched.store.path("rollout", NAME, "events", "000002.json").unlink()
    with pytest.raises(ValueError, match="000002"):
        read_log(watched.store, NAME)


def torn(snapshot: Path) -> None:
    snapshot.write_bytes(snapshot.read_bytes()[:100])


def of_other_events(snapshot: Path) -> None:
    events = sorted(snapshot.parent.glob("events/*.json"))
    last = json.loads(snapshot.read_bytes())["state"]["epoch"]
    other = events[last - 1].read_text("utf-8").replace('"reason": "', '"reason": "another one: ')
    events[last - 1].write_text(other, encoding="utf-8")


def of_an_earlier_backup(snapshot: Path) -> None:
    for path in sorted(snapshot.parent.glob("events/*.json"))[5:]:
        path.unlink()


@pytest.mark.parametrize("spoil", [torn, of_other_events, of_an_earlier_backup, Path.unlink])
def test_a_lost_or_foreign_snapshot_is_not_believed(watched: World, spoil: Callable[[Path], None]) -> None:
    path = watched.store.path(SNAPSHOT)
    path.write_text(path.read_text("utf-8").replace('"offered": true', '"offered": false'), encoding="utf-8")
    assert not read_log(watched.store, NAME).state.offered, "it is what is read"
    spoil(path)
    assert read_log(watched.store, NAME) == fold(read_events(watched.store, NAME))
    assert read_log(watched.store, NAME).state.offered or spoil is of_an_earlier_backup


def test_another_code_adds_the_events_up_anew(watched: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = watched.store.path(SNAPSHOT).read_bytes()
    monkeypatch.setattr(folding, "_code", lambda: "later")
    watched.store.path("rollout", NAME, "events", "000002.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="000002"):
        read_log(watched.store, NAME)
    assert watched.store.path(SNAPSHOT).read_bytes() == before
