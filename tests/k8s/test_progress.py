"""Starts that lead nowhere."""

from pathlib import Path

import pytest

from k8s.follow import FRUITLESS, GangProgress


@pytest.fixture
def progress(tmp_path: Path) -> GangProgress:
    return GangProgress(tmp_path)


def test_starts_without_a_checkpoint_come_to_an_end(progress: GangProgress) -> None:
    assert [progress.started(starts) for starts in range(FRUITLESS + 1)] == [True] * FRUITLESS + [False]


def test_looks_between_two_starts_count_for_nothing(progress: GangProgress) -> None:
    assert all(progress.started(3) for _ in range(5 * FRUITLESS))


def test_a_newer_checkpoint_begins_the_count_anew(progress: GangProgress, tmp_path: Path) -> None:
    for starts in range(5 * FRUITLESS):
        if starts % (FRUITLESS - 1) == 0:
            (tmp_path / "checkpoints" / f"step-{starts:06}").mkdir(parents=True)
        assert progress.started(starts)


def test_the_checkpoints_of_nemo_rl_count(progress: GangProgress, tmp_path: Path) -> None:
    for starts in range(5 * FRUITLESS):
        if starts % (FRUITLESS - 1) == 0:
            (tmp_path / "nemo" / "0123" / "checkpoints" / f"step_{starts}").mkdir(parents=True)
        assert progress.started(starts)


def test_what_was_before_this_launch_looked_is_not_held_against_it(progress: GangProgress) -> None:
    assert progress.started(5 * FRUITLESS)
    assert not progress.started(6 * FRUITLESS)
