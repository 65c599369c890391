"""A sync or a rename that fails, of a full or of a broken disk: an error that names the file, and nothing is lost."""

import errno
import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import audit
from pipeline.core.storage import Record, Store
from pipeline.rollout.record import Phase, read_events
from tests.failing_disk import failed_at_every_write
from tests.pipeline.rollout.conftest import NAME, World
from tests.pipeline.training.checkpoints.conftest import Run, is_whole

FULL, BROKEN = errno.ENOSPC, errno.EIO
NOW = datetime(2026, 1, 12, tzinfo=UTC)


class Fact(Record):
    text: str


@pytest.fixture
def place(tmp_path: Path) -> Callable[[], Path]:
    """A folder that was not there, at each call."""
    numbers = itertools.count()
    return lambda: tmp_path / str(next(numbers))


@pytest.mark.parametrize("number", [FULL, BROKEN])
def test_records_and_the_audit_log_outlive_a_failing_disk(number: int, place: Callable[[], Path]) -> None:
    """A record is there whole or not at all, and an entry that was refused is written once when it comes again."""

    def prepare() -> Callable[[], Any]:
        store = Store(place())
        audit.record(store, "decision", "first", {}, NOW)

        def work() -> Any:
            store.write("a.json", Fact(text="new"))
            store.once("b.json", Fact, lambda: Fact(text="one"))
            if not any(entry.subject == "second" for entry in audit.entries(store)):
                audit.record(store, "decision", "second", {}, NOW)
            facts = [store.read(name, Fact) for name in ("a.json", "b.json")]
            names = sorted(path.name for path in store.root.iterdir())
            return facts, names, [entry.subject for entry in audit.entries(store)], audit.verify(store).flaw

        return work

    results = failed_at_every_write(prepare, number)
    *failed, (none, whole) = results
    assert len(failed) > 8 and none == "" and whole[2:] == (["first", "second"], "")
    assert all(again == whole for _, again in failed)
    heals_itself = sum(not raised for raised, _ in failed)
    assert heals_itself == 3, "the head behind a durable line: the next entry takes it along"
    assert sum(str(place().parent) in raised for raised, _ in failed) >= 5, "the kernel names no file that was synced"


@pytest.mark.parametrize("number", [FULL, BROKEN])
def test_a_checkpoint_outlives_a_failing_disk(number: int, place: Callable[[], Path]) -> None:
    def prepare() -> Callable[[], Any]:
        folder = place()
        Run(folder, keep_last=1).save(5)

        def work() -> Any:
            assert Run(folder).newest() in ("step-000005", "step-000010"), "the older one stands"
            run = Run(folder, keep_last=1)
            published = run.save(10)
            return is_whole(published), run.there(), run.newest()

        return work

    *failed, (none, whole) = failed_at_every_write(prepare, number)
    assert len(failed) > 5 and none == "" and whole == (True, ["step-000010"], "step-000010")
    assert all(again == whole for _, again in failed)


def test_a_rollout_outlives_a_failing_disk(place: Callable[[], Path]) -> None:
    def prepare() -> Callable[[], Any]:
        world = World(Store(place()))
        world.propose("b")

        def work() -> Any:
            world.tick_until(Phase.OBSERVING)
            split = world.router.read()
            phases = [event.phase for event in read_events(world.store, NAME)]
            steps = [phase for phase, _ in itertools.groupby(phases)]  # one that waits for its router is there twice
            return steps, split and split.canary_weight, audit.verify(world.store).flaw

        return work

    *failed, (none, whole) = failed_at_every_write(prepare, BROKEN)
    assert len(failed) > 10 and none == "" and whole[1:] == (5, "")
    assert all(again == whole for _, again in failed)
