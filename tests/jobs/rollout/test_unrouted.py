"""A deployment without a router: every command says that nothing is routed, and none crashes."""

from pathlib import Path

import pytest

from assets.resources import Deployment, deployment
from assets.rollout import follow_rollout, read_status
from assets.traffic import is_routed
from jobs import serve, status
from jobs.rollout import DONE, FAILED, REFUSED, main
from pipeline.rollout.record import Phase
from tests.jobs.rollout.decided import state
from tests.opened import open_rollout

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
        (["pause", "--reason", "r"], REFUSED, "no rollout is active"),
        (["resume", "--reason", "r"], REFUSED, "no rollout is active"),
        (["abort", "--reason", "r"], REFUSED, "no rollout is active"),
        (["rollback", "--reason", "r"], REFUSED, "no rollout is active"),
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
