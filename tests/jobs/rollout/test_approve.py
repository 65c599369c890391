"""Approvals as a person gives them: by one of the approvers, for one candidate, once, and never for their own."""

from pathlib import Path

import pytest

from assets.resources import Deployment
from jobs.rollout import main
from pipeline.core import audit
from pipeline.rollout.record import Phase
from tests.jobs.rollout.decided import decided, look, state
from tests.opened import open_rollout

pytestmark = pytest.mark.slow
REASON = ["--reason", "looked at it"]


@pytest.fixture
def overrides(overrides: list[str]) -> list[str]:
    return [*overrides, "rollout.approvers=[ada@example.org,bob@example.org]"]


@pytest.fixture
def waiting(settings: Deployment, tmp_path: Path) -> str:
    """Bob's candidate, which passed the gate and waits for a person."""
    rollout = open_rollout(settings, tmp_path, 1000.0, "bob")
    for n in range(1, 4):
        look(settings, 1000.0 + n)
    assert state(settings).phase is Phase.GATED
    return rollout


def approve(rollout: str, by: str = "ada@example.org") -> int:
    return main(["approve", "--rollout", rollout, "--by", by, *REASON])


def test_an_approval_lets_the_candidate_in(settings: Deployment, waiting: str, capsys) -> None:
    assert main(["status"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "one of ada@example.org, bob@example.org to approve it, who did not propose it (bob did)" in out
    assert f"pt rollout approve --rollout {waiting} --by NAME --reason 'WHY'" in out
    assert approve(waiting) == 0
    assert "is approved by ada@example.org" in capsys.readouterr().out
    assert state(settings).phase is Phase.APPROVED
    look(settings, 1010.0)
    assert (state(settings).phase, state(settings).canary_weight) == (Phase.SHIFTING, 5)


def test_an_approval_is_in_the_audit_log(settings: Deployment, waiting: str) -> None:
    assert approve(waiting) == 0
    assert decided(settings) == [("approve", "ada@example.org", "looked at it")]
    [entry] = [e for e in audit.entries(settings.store()) if e.kind == "approval"]
    made = state(settings).proposal
    assert made is not None
    assert (entry.detail["digest"], entry.detail["bundle"]) == (made.version.model.digest, made.bundle_digest)


@pytest.mark.parametrize(
    ("by", "why"),
    [
        ("bob@example.org", "bob@example.org proposed this candidate as bob: somebody else"),
        ("eve@example.org", "eve@example.org is not among rollout.approvers (ada@example.org, bob@example.org)"),
    ],
)
def test_who_may_not_is_refused(settings: Deployment, waiting: str, by: str, why: str, capsys) -> None:
    assert approve(waiting, by) == 1
    assert why in capsys.readouterr().out
    assert (state(settings).phase, decided(settings)) == (Phase.GATED, [])


def test_an_approval_counts_once_and_not_after_an_abort(settings: Deployment, waiting: str, capsys) -> None:
    assert (approve(waiting), approve(waiting)) == (0, 1)
    assert "is approved, and nothing is there to approve" in capsys.readouterr().out
    assert len(decided(settings)) == 1
    main(["abort", "--reason", "no"])
    assert approve(waiting) == 1
    assert "no rollout is active" in capsys.readouterr().out


@pytest.mark.parametrize(("rollout", "why"), [("000000000000", "is not the active rollout"), ("", "names no rollout")])
def test_an_approval_names_its_rollout(settings: Deployment, waiting: str, rollout: str, why: str, capsys) -> None:
    assert approve(rollout) == 1
    assert why in capsys.readouterr().out
    assert state(settings).phase is Phase.GATED
