"""A rollout on the embedded gateway that waits for a person: approved and carried out, or refused."""

import shlex
import time
from pathlib import Path

import dagster as dg
import pytest

from assets.resources import Deployment
from assets.rollout import follow_rollout
from jobs.preference_tuning import rollout_decision
from jobs.rollout import main
from pipeline.core import layout
from pipeline.rollout.fold import read_state
from pipeline.rollout.gateway.spans import recorded
from pipeline.rollout.record import Phase, Proposal
from tests.loop import EMBEDDED, SHORT, deployment, instance
from tests.opened import open_rollout
from tests.variants import one_and_variants

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Waiting:
    """A candidate of bob's that waits for ada."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, words = folder, ["rollout.approvers=[ada@example.org]"]
        self.settings: Deployment = deployment(folder / "data", words)
        patch.setenv("PREFERENCE_TUNING_RECIPE", str(EMBEDDED))
        patch.setenv("PREFERENCE_TUNING_OVERRIDES", shlex.join([*SHORT, f"data_root={folder / 'data'}", *words]))
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        self.rollout = open_rollout(self.settings, folder, time.time(), "bob")
        assert self.follow().phase is Phase.GATED, "it waits"

    def follow(self):
        return follow_rollout(self.settings, print, 200.0)

    @property
    def proposal(self) -> Proposal:
        proposal = read_state(self.settings.store(), "arithmetic").proposal
        assert proposal is not None
        return proposal

    def canary_answers(self) -> int:
        rows = recorded(self.settings.store().path(layout.served("arithmetic")), 0.0, time.time())
        return sum(row.marks["rollout.arm"] == "canary" for row in rows)

    def launch(self, digest: str, by: str = "ada@example.org") -> bool:
        """The job as Dagster's Launchpad has it."""
        meant = {"rollout": self.rollout, "digest": digest, "action": "approve", "reason": "looked at it", "by": by}
        with instance(self.folder / f"home-{time.monotonic_ns()}") as home:
            done: dg.ExecuteInProcessResult = rollout_decision.execute_in_process(
                run_config={"ops": {"decide_rollout": {"config": meant}}},
                resources={"deployment": self.settings},
                instance=home,
                raise_on_error=False,
            )
        return done.success

    def approve(self, rollout: str = "") -> int:
        words = ["--rollout", rollout or self.rollout, "--by", "ada@example.org", "--reason", "looked at it"]
        return main(["approve", *words])


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(tmp_path, monkeypatch)


@pytest.mark.variant
@pytest.mark.parametrize("where", one_and_variants(["terminal", "job"]))
def test_an_approved_candidate_is_promoted(waiting: Waiting, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    assert "approv" in capsys.readouterr().out
    assert waiting.canary_answers() == 0
    if where == "terminal":
        assert waiting.approve() == 0
    else:
        assert waiting.launch(waiting.proposal.version.model.digest)
    state = waiting.follow()
    assert state.phase is Phase.PROMOTED, state.reason
    assert waiting.canary_answers() > 0


@pytest.mark.variant
def test_an_approval_of_something_else_moves_nothing(waiting: Waiting) -> None:
    digest = waiting.proposal.version.model.digest
    assert waiting.approve("0" * 12) == 1
    assert not waiting.launch("0" * 64)
    assert not waiting.launch(digest, by="bob"), "who proposed it is nobody to approve it"
    assert waiting.follow().phase is Phase.GATED
    assert waiting.canary_answers() == 0


@pytest.mark.variant
def test_files_that_change_after_the_approval_are_not_served(waiting: Waiting) -> None:
    """What was approved is the digest; what lies in the folder is another model by now."""
    assert waiting.approve() == 0
    (Path(waiting.proposal.version.model.uri) / "note.txt").write_text("other files than those that were judged")
    state = waiting.follow()
    assert (state.phase, state.past.quarantined) == (Phase.ABORTED, {})
    assert "files are gone or changed" in state.reason
    assert waiting.canary_answers() == 0
