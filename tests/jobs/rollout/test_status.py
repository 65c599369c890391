"""The picture at a terminal, and what every command says where nothing is routed."""

import re
from pathlib import Path

import pytest

from assets.resources import Deployment, deployment
from assets.rollout import follow_rollout, read_status
from assets.traffic import is_routed
from jobs import serve, status
from jobs.rollout import DONE, FAILED, REFUSED, main, view
from pipeline.rollout.evidence import LiveEvidence
from pipeline.rollout.record import Phase
from pipeline.rollout.shares import Ratio
from tests.jobs.rollout.decided import state
from tests.opened import open_rollout
from tests.pipeline.rollout.reports import NOW, arm, report

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
    assert "answers           375 graded; 19 of 20 equal canaries pass by 1,518" in text


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


NONE = "rollout.traffic={kind: none}"
SAYS = "nothing is routed here, so no candidate gets requests"


@pytest.fixture
def unrouted(overrides: list[str], settings: Deployment, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", " ".join(f'"{each}"' for each in [*overrides, NONE]))
    return deployment()


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (["status"], DONE, SAYS),
        (["status", "--json"], DONE, '"routed": false'),
        (["approve", "--reason", "r"], REFUSED, "no rollout is active"),
        (["abort", "--reason", "r"], REFUSED, "no rollout is active"),
    ],
)
def test_each_command_says_that_nothing_is_routed(
    command: list[str], code: int, says: str, unrouted: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == code
    shown = capsys.readouterr()
    assert says in " ".join((shown.out + shown.err).split())


def test_what_is_shown_elsewhere_says_it_too(unrouted: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_routed(unrouted)
    assert follow_rollout(unrouted, print, 0.0).phase is Phase.IDLE
    report = read_status(unrouted)
    assert report.waits_for.startswith("nothing") and SAYS in report.router_reason
    assert status.main([]) == status.DONE
    assert SAYS in " ".join(capsys.readouterr().out.split())
    assert serve.main() == 1
    assert "so nothing is routed" in capsys.readouterr().out


@pytest.mark.slow
def test_a_rollout_of_before_waits_for_its_router(
    settings: Deployment, unrouted: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever its router does meanwhile is not known, so nothing is said to be at 0%."""
    opened = open_rollout(settings, tmp_path, 1000.0, "bob")
    assert follow_rollout(unrouted, print, 0.0).phase is Phase.GATED
    assert read_status(unrouted).waits_for == "rollout.traffic to name the router that it began with"
    capsys.readouterr()
    assert main(["abort", "--reason", "no router any more"]) == FAILED
    assert f"Rollout {opened} began with a router: name that" in capsys.readouterr().out
    assert state(unrouted).phase is Phase.ROLLING_BACK
