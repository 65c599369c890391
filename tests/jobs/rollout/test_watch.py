"""The live view: what it draws, what it prints where there is no terminal, and when it ends."""

import re
from collections.abc import Callable, Sequence

from jobs.rollout.watch import FAULTS, change_line, follow, screen
from pipeline.rollout.record import Phase
from pipeline.rollout.status import RolloutStatus
from tests.pipeline.rollout.reports import NOW, bare, report


class Shown:
    """Statuses read one after the other, and what was shown of them."""

    def __init__(self, reads: Sequence[RolloutStatus | Exception]) -> None:
        self.reads, self.pictures, self.slept = list(reads), list[tuple[RolloutStatus | None, str]](), 0

    def read(self) -> RolloutStatus:
        each = self.reads.pop(0)
        if isinstance(each, Exception):
            raise each
        return each

    def follow(self) -> RolloutStatus | None:
        return follow(self.read, lambda last, fault: self.pictures.append((last, fault)), self._sleep)

    def _sleep(self) -> None:
        self.slept += 1


def test_a_watch_ends_with_the_rollout() -> None:
    over = report(Phase.PROMOTED)
    watched = Shown([report(), report(Phase.HELD), over])
    assert watched.follow() == over
    assert (len(watched.pictures), watched.slept) == (3, 2)


def test_a_watch_without_a_rollout_ends_at_once() -> None:
    assert Shown([bare()]).follow() == bare()


def test_a_fault_keeps_the_last_picture_and_says_why() -> None:
    over = report(Phase.ABORTED)
    watched = Shown([report(), OSError("the router is gone"), over])
    assert watched.follow() == over
    assert watched.pictures[1] == (report(), "the router is gone")


def test_a_watch_that_sees_nothing_any_more_ends() -> None:
    watched = Shown([ValueError("no store")] * 100)
    assert watched.follow() is None
    assert watched.slept == FAULTS


def test_a_screen_is_drawn_over_the_one_before() -> None:
    text = screen(report(), "", 80, 40, NOW)
    assert text.startswith("\x1b[H")
    assert text.endswith("\x1b[J")
    assert text.count("\x1b[K\n") == text.count("\n")


def test_a_screen_has_no_more_lines_than_the_terminal() -> None:
    for height in (8, 12, 24):
        assert screen(report(), "", 80, height, NOW).count("\n") < height


def test_a_screen_with_a_fault_says_that_it_is_old() -> None:
    text = screen(report(), "the router is gone", 80, 40, NOW)
    assert re.search("cannot be read now.*the router is gone", text)
    assert "OBSERVING" in text


def test_lines_without_a_terminal_change_with_the_rollout() -> None:
    lines: Callable[[RolloutStatus], str] = change_line
    assert lines(report()) == lines(report(dwell_s=500.0))
    assert lines(report()) != lines(report(Phase.HELD))
    assert lines(bare()) == "desk no rollout yet"
