"""A rollout on the embedded gateway that waits for a person: signed for and carried out, or refused."""

import shlex
import time
from pathlib import Path

import dagster as dg
import pytest

from assets.resources import Deployment
from assets.rollout import follow_rollout
from jobs.preference_tuning import rollout_decision
from jobs.rollout.__main__ import main
from pipeline import layout
from pipeline.gateway.span_files import recorded
from pipeline.rollout.approval import approval_line
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import Phase, Proposal
from pipeline.signatures import sign
from tests.loop import EMBEDDED, SHORT, deployment, instance
from tests.opened import open_rollout
from tests.pipeline.rollout.signers import needs_ssh_keygen, new_key, signer_line, signers_file
from tests.variants import one_and_variants

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_ssh_keygen]


class Waiting:
    """A candidate of bob's that waits for ada."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.key = folder, new_key(folder / "keys", "ada")
        signers = signers_file(folder, signer_line("ada@example.org", self.key))
        page = '{"approvers":["ada@example.org"],"origin":"https://models.example.org"}'
        # Without APPROVAL_PROXY_SECRET: the gateway that a run starts for itself has no page of approvals.
        words = [f"rollout.approval.allowed_signers={signers}", f"rollout.approval.proxy={page}"]
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

    def launch(self, digest: str, signature: str) -> bool:
        """The job as Dagster's Launchpad has it."""
        meant = {"rollout": self.rollout, "digest": digest, "action": "approve", "reason": "looked at it", "by": "ada"}
        with instance(self.folder / f"home-{time.monotonic_ns()}") as home:
            done: dg.ExecuteInProcessResult = rollout_decision.execute_in_process(
                run_config={"ops": {"decide_rollout": {"config": {**meant, "signature": signature}}}},
                resources={"deployment": self.settings},
                instance=home,
                raise_on_error=False,
            )
        return done.success


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
        assert main(["approve", "--rollout", waiting.rollout, "--key", str(waiting.key)]) == 0
    else:
        line = approval_line(waiting.proposal)
        assert waiting.launch(waiting.proposal.version.model.digest, sign(line, waiting.key))
    state = waiting.follow()
    assert state.phase is Phase.PROMOTED, state.reason
    assert waiting.canary_answers() > 0


@pytest.mark.variant
def test_an_approval_for_another_digest_moves_nothing(waiting: Waiting, capsys: pytest.CaptureFixture[str]) -> None:
    digest = waiting.proposal.version.model.digest
    signature = sign(approval_line(waiting.proposal).replace(digest, "0" * 64), waiting.key)
    file = waiting.folder / "approval.sig"
    file.write_text(signature)
    assert main(["approve", "--signature", str(file)]) == 2
    assert "is not of this line" in capsys.readouterr().err
    assert not waiting.launch(digest, signature), "the form is right, what was signed is not"
    assert not waiting.launch("0" * 64, sign(approval_line(waiting.proposal), waiting.key)), "the form is not"
    assert waiting.follow().phase is Phase.GATED
    assert waiting.canary_answers() == 0


@pytest.mark.variant
def test_files_that_change_after_the_approval_are_not_served(waiting: Waiting) -> None:
    """What was signed is the digest; what lies in the folder is another model by now."""
    assert main(["approve", "--key", str(waiting.key)]) == 0
    (Path(waiting.proposal.version.model.uri) / "note.txt").write_text("other files than those that were judged")
    state = waiting.follow()
    assert (state.phase, state.quarantined) == (Phase.ABORTED, {})
    assert "files are gone or changed" in state.reason
    assert waiting.canary_answers() == 0
