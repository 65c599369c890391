"""The account of time: every second has one cause."""

import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.training.account import account, interruptions
from pipeline.training.journal import Kind, TrainingEvent
from pipeline.training.result import CAUSES, Preemption

moments = st.floats(-1e6, 1e6) | st.just(1.7e9)
lines = st.builds(
    TrainingEvent,
    kind=st.sampled_from(["started", "ready", "step", "saved", "validated", "stopping", "ended"]),
    at=moments,
    step=st.integers(0, 9),
    seconds=st.dictionaries(st.sampled_from(["step", "save", "validation"]), st.floats(-1e6, 1e6) | st.just(math.nan)),
    why=st.just("SIGTERM"),
)


@given(st.lists(lines, max_size=30))
@example([TrainingEvent(kind="step", at=0, step=1, seconds={"step": -1.0})])
def test_goodput_loses_no_second_and_counts_none_twice(events: Sequence[TrainingEvent]) -> None:
    """Clocks that differ between machines, lines that a kill cut out, seconds that cannot be: still an account."""
    found = account(events)
    assert tuple(found.badput_s) == CAUSES
    assert min(found.productive_s, *found.badput_s.values()) >= 0
    passed = max((e.at for e in events), default=0.0) - events[0].at if events else 0.0
    assert found.total_s == pytest.approx(max(0.0, passed), rel=1e-9, abs=1e-6)
    assert found.total_s == found.productive_s + sum(found.badput_s.values())
    assert 0 <= found.share <= 1
    assert all(each.lost_steps >= 0 for each in interruptions(events))


def journal(*lines: tuple[Kind, float, int]) -> Iterator[TrainingEvent]:
    for kind, at, step in lines:
        yield TrainingEvent(kind=kind, at=at, step=step, why={"stopping": "SIGTERM", "ended": "stopped"}.get(kind, ""))


def test_step_longer_than_the_grace_is_lost_work() -> None:
    events = list(journal(("started", 0, 0), ("ready", 1, 0), ("step", 11, 1), ("saved", 12, 1), ("stopping", 18, 1),
                          ("started", 20, 1), ("ready", 21, 1), ("step", 31, 2), ("ended", 33, 2)))  # fmt: skip
    found = account(events)
    assert found.productive_s == 20
    assert found.badput_s == {"start": 2, "save": 1, "validation": 0, "lost": 6, "waiting": 2, "end": 2}
    assert interruptions(events) == (Preemption(cause="SIGTERM", step=1, lost_steps=0),)


def test_stopped_training_counts_no_step_after_its_best() -> None:
    events = list(journal(("started", 0, 0), ("ready", 1, 0), ("step", 3, 1), ("step", 7, 2), ("ended", 8, 1)))
    found = account(events)
    assert (found.productive_s, found.badput_s["lost"], found.badput_s["end"]) == (2, 4, 1)
    assert interruptions(events) == ()


def test_fall_back_loses_the_steps_of_earlier_attempts_too() -> None:
    events = list(journal(("started", 0, 0), ("ready", 0, 0), ("step", 1, 1), ("step", 2, 2), ("started", 2, 2),
                          ("ready", 2, 2), ("step", 3, 3), ("started", 3, 1), ("ready", 3, 1),
                          ("step", 4, 2)))  # fmt: skip
    found = account(events)
    assert (found.productive_s, found.badput_s["lost"]) == (2, 2)
    assert [each.lost_steps for each in interruptions(events)] == [0, 2]
    assert {each.cause for each in interruptions(events)} == {"killed"}
