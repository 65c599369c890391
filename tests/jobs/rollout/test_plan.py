"""`plan` and `aa` at the terminal; the rules behind them have tests of their own."""

import random

import pytest

from assets.resources import Deployment
from jobs.rollout import plan
from jobs.rollout.__main__ import main
from pipeline.rollout.aa import ServedRequest


@pytest.fixture
def week(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 users who ask 20 times each, and are right 7 times of 10."""
    draw = random.Random(1)
    requests = [
        ServedRequest(f"u{draw.randrange(400)}", 600.0 * n / 8, draw.uniform(0.5, 1.0), False, draw.choice(GRADES))
        for n in range(8000)
    ]
    monkeypatch.setattr(plan, "read_last_week", lambda settings: requests)


GRADES = ("right",) * 7 + ("wrong",) * 3


def test_a_plan_has_the_days_of_each_stage(settings: Deployment, week: None, capsys) -> None:
    assert main(["plan"]) == 0
    out = capsys.readouterr().out
    assert "8,000 requests of 400 users in 6.9 days" in out
    assert "100% graded" in out
    for weight in ("5%", "25%", "80%"):
        assert weight in out
    assert "in all" in out
    assert "0.01 requests a second in the busiest hour" in out
    assert "set rollout.requests_per_server" in out, "no router answers here"


def test_an_aa_test_that_passes_ends_well(settings: Deployment, week: None, capsys) -> None:
    assert main(["aa", "--salts", "5", "--looks", "24"]) == 0
    assert "5 salts, 24 looks" in capsys.readouterr().out


def test_before_the_first_iteration_there_is_no_plan(settings: Deployment, capsys) -> None:
    for command in ("plan", "aa"):
        assert main([command]) == 2
        assert "There is no iteration yet" in capsys.readouterr().err
