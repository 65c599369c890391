"""`plan` at the terminal; the rules behind it have tests of their own."""

import pytest

from assets.resources import Deployment
from jobs.rollout import plan
from jobs.rollout.__main__ import main
from pipeline.rollout.evidence import UnitCounts
from pipeline.rollout.plan import LastWeek


def test_a_plan_has_the_days_of_each_stage(
    settings: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    users = [UnitCounts(requests=20, graded=20, correct=14)] * 400
    monkeypatch.setattr(plan, "read_last_week", lambda settings: LastWeek(users, 6.9, False))
    assert main(["plan"]) == 0
    out = capsys.readouterr().out
    assert "8,000 requests of 400 users in 6.9 days" in out
    assert "100% graded" in out
    for weight in ("5%", "25%", "80%"):
        assert weight in out
    assert "in all" in out


def test_before_the_first_iteration_there_is_no_plan(settings: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 2
    assert "There is no iteration yet" in capsys.readouterr().err
