"""Attempts with numbers: the highest one writes."""

import threading
from pathlib import Path

import pytest

from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints import Checkpointer, FencingToken, only_writer
from pipeline.training.checkpoints.manifest import Origin
from pipeline.training.checkpoints.writer import check, parse, take
from pipeline.training.result import InvalidPlan

from .conftest import trained


@pytest.mark.parametrize(
    ("text", "turn"), [("", None), ("3", FencingToken(3)), ("3.", FencingToken(3)), ("2.11", FencingToken(2, 11))]
)
def test_a_turn_is_attempt_and_restart(text: str, turn: FencingToken | None) -> None:
    assert parse(text) == turn


@pytest.mark.parametrize("text", ["x", "1.2.3", "-1", "1.x", " 1", "$(RESTART)"])
def test_what_is_no_turn_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no turn: write ATTEMPT\.RESTART"):
        parse(text)


def test_later_token_takes_the_folder_and_keeps_it(tmp_path: Path) -> None:
    take(tmp_path, FencingToken(1))
    take(tmp_path, FencingToken(1, 1))
    take(tmp_path, FencingToken(1, 1))  # the same one, started again
    take(tmp_path, FencingToken(2))
    for replaced in (FencingToken(1), FencingToken(1, 1), FencingToken(1, 99)):
        with pytest.raises(InvalidPlan, match=r"Attempt 2\.0 has taken"):
            take(tmp_path, replaced)
        with pytest.raises(InvalidPlan, match=r"Attempt 2\.0 has taken"):
            check(tmp_path, replaced)
    check(tmp_path, FencingToken(2))


def test_of_turns_that_race_the_highest_has_the_directory(tmp_path: Path) -> None:
    outcomes: dict[int, str] = {}

    def run(number: int) -> None:
        try:
            take(tmp_path, FencingToken(number))
            outcomes[number] = "took"
        except InvalidPlan:
            outcomes[number] = "gave way"

    threads = [threading.Thread(target=run, args=(n,)) for n in (3, 1, 4, 2, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes[5] == "took"
    check(tmp_path, FencingToken(5))
    with pytest.raises(InvalidPlan):
        check(tmp_path, FencingToken(4))


def test_an_attempt_that_was_replaced_commits_no_checkpoint(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    with only_writer(tmp_path, FencingToken(1)):
        keeper = Checkpointer(root, Origin("p", 1), 1, Checkpoints(), print, lambda: check(tmp_path, FencingToken(1)))
        assert keeper.commit(trained(tmp_path / "a", 5), 5, None).is_dir()
        take(tmp_path, FencingToken(2))  # by a launcher elsewhere, which believes this one dead
        with pytest.raises(InvalidPlan, match="writes nothing more"):
            keeper.commit(trained(tmp_path / "b", 10), 10, None)
    assert [folder.name for folder in sorted(root.glob("step-*"))] == ["step-000005"]


def test_a_file_that_is_none_of_ours_is_said(tmp_path: Path) -> None:
    (tmp_path / "turn.json").write_text("{")
    with pytest.raises(InvalidPlan, match="Remove it when nothing trains there"):
        take(tmp_path, FencingToken(1))
