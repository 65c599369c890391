"""Who answers where no rollout has asked for a split: the champion, however many slots there are."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.core.storage import Store
from pipeline.rollout.gateway.tables import read_split, write_champion, write_split
from pipeline.rollout.router import NO_ROLLOUT
from tests.pipeline.rollout.gateway.world import CANARY, CHAMPION, NAME, UNKNOWN, World, split_of, text_of, world


@pytest.fixture
def unsplit(tmp_path: Path) -> Iterator[World]:
    """Two slots, and no rollout has asked for anything."""
    with world(tmp_path) as gateway:
        yield gateway


@pytest.mark.slow
def test_a_candidate_that_gets_a_slot_takes_no_answers_away(unsplit: World) -> None:
    refused = unsplit.post(user="ada")
    assert refused.status_code == 503 and "No split says which model is the champion" in refused.text
    write_champion(unsplit.store, NAME, CHAMPION, is_rolled_out=True)
    answers = [unsplit.post(user=f"user-{n}") for n in range(8)]
    assert {answer.status_code for answer in answers} == {200}
    assert {"a" * 12 in text_of(answer) for answer in answers} == {True}
    assert unsplit.request(answers[0]).marks["rollout.arm"] == "champion"
    unsplit.split(100)
    assert "b" * 12 in text_of(unsplit.post(user="ada")), "a rollout's first split is obeyed"


def test_the_split_of_a_rollout_stands(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_champion(store, NAME, CHAMPION, is_rolled_out=False)
    first = read_split(store, NAME)
    assert first is not None and (first.rollout, first.epoch, first.canary) == (NO_ROLLOUT, 0, None)
    for split, is_rolled_out in ((split_of(5, 1), True), (split_of(0, 2), True), (split_of(5, 3), False)):
        write_split(store, NAME, split)
        write_champion(store, NAME, UNKNOWN, is_rolled_out)
        assert read_split(store, NAME) == split


def test_a_champion_that_changed_without_a_rollout_serves(tmp_path: Path) -> None:
    """The recipe names another base model: the split of a rollout that has ended names one that has no slot."""
    store = Store(tmp_path)
    write_split(store, NAME, split_of(0, 7))
    write_champion(store, NAME, CHAMPION, is_rolled_out=False)
    assert read_split(store, NAME) == split_of(0, 7), "it is the champion already"
    write_champion(store, NAME, CANARY, is_rolled_out=False)
    now = read_split(store, NAME)
    assert now is not None and (now.champion, now.champion_weight, now.epoch) == (CANARY, 100, 7)
