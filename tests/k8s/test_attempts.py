"""The record of attempts, whoever else writes it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from k8s.attempts import GangAttempts
from k8s.ledger import LaunchAttempt
from pipeline.core.storage import Store


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
