"""The picture at a terminal: it fits, and its commands can be copied."""

import re

import pytest

from jobs.rollout import view
from pipeline.rollout.evidence import LiveEvidence
from pipeline.rollout.record import Phase
from pipeline.rollout.shares import Ratio
from tests.pipeline.rollout.reports import NOW, arm, bare, report

COMMAND = re.compile(r"(dagster job launch|pt rollout)")
LONG = "the share of requests contradicts the weight, " * 6


def test_the_picture_shows_stages_arms_and_what_it_waits_for() -> None:
    text = "\n".join(view(report(), NOW, 120))
    assert "desk: OBSERVING" in text
    assert "weight            25% on the canary, of 5% → 25% → 95%; the router reads" in text
    assert re.search(r"requests +1,125 +375 \(25\.0%\)", text)
    assert re.search(r"users +112 +38", text)
    assert re.search(r"right +70\.0% \(67\.3% to 72\.7%\) +69\.0% \(64\.3% to 73\.7%\)", text)
    assert re.search(r"slow +1\.20% +1\.20% +over 2\.3 s", text)
    assert re.search(r"graded +1,125 \(96%\) +375 \(96%\)", text)
    assert "phase             observing since 2027-01-15 07:50:00 UTC (10 minutes ago)" in text
    assert "dwell             6.7 minutes of 10 minutes with metrics" in text
    assert "answers           375 of 1,518 graded ones of the canary" in text


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("phase", [Phase.OBSERVING, Phase.HELD, Phase.PROMOTED])
def test_no_line_is_wider_than_the_terminal(width: int, phase: Phase) -> None:
    shown = report(phase, reason=LONG, last_look=LONG, waits_for=LONG, policy={"weights": (1, 2, 5, 10, 25, 50, 100)})
    lines = [line for line in view(shown, NOW, width) if not COMMAND.search(line)]
    assert max(map(len, lines)) <= width


def test_colours_change_no_word() -> None:
    shown = report(Phase.HELD)
    painted = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in view(shown, NOW, 80, colour=True)]
    assert painted == list(view(shown, NOW, 80))
    assert "\x1b[" in "".join(view(shown, NOW, 80, colour=True))


def test_without_users_grades_or_latencies_it_says_so() -> None:
    ungraded = arm(100).model_copy(update={"quality": Ratio(), "coverage": Ratio()})
    blind = report(evidence=LiveEvidence(champion=ungraded, canary=ungraded), policy={"unit": "request"})
    text = "\n".join(view(blind, NOW, 80))
    assert "users" not in text
    assert "slow" not in text
    assert re.search(r"right +- +-", text)


def test_without_a_rollout_it_says_who_serves_and_what_next() -> None:
    text = "\n".join(view(bare(), NOW, 80))
    assert "the base model (77aa77aa77aa), all requests" in text
    assert "dagster job launch -j preference_tuning" in text


def test_each_decision_has_a_command_of_one_line() -> None:
    lines = list(view(report(Phase.HELD, decisions=("resume", "abort")), NOW, 60))
    for action in ("resume", "abort"):
        assert [each for each in lines if each.endswith(f"{action} --rollout 3f9c1a2b4d5e --reason 'WHY'")]
