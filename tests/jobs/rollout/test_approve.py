"""Approvals as a person gives them: with a real key, for one candidate, once, and never for their own."""

import shlex
import subprocess
from pathlib import Path

import pytest

from assets.resources import Deployment, deployment
from assets.traffic import gateway_settings
from jobs.rollout.__main__ import main
from pipeline import audit
from pipeline.rollout.approval import approval_line
from pipeline.rollout.record import Phase, Proposal
from tests.jobs.rollout.decided import decided, look, state
from tests.opened import open_rollout
from tests.pipeline.rollout.signers import needs_ssh_keygen, new_key, signer_line, signers_file

pytestmark = [pytest.mark.slow, needs_ssh_keygen]


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Path]:
    return {name: new_key(tmp_path / "keys", name) for name in ("ada", "bob")}


@pytest.fixture
def overrides(overrides: list[str], keys: dict[str, Path], tmp_path: Path) -> list[str]:
    file = signers_file(tmp_path, *(signer_line(f"{name}@example.org", key) for name, key in keys.items()))
    return [*overrides, f"rollout.approval.allowed_signers={file}"]


@pytest.fixture
def waiting(settings: Deployment, tmp_path: Path) -> str:
    """Bob's candidate, which passed the gate and waits for a person."""
    rollout = open_rollout(settings, tmp_path, 1000.0, "bob")
    for n in range(1, 4):
        look(settings, 1000.0 + n)
    assert state(settings).phase is Phase.GATED
    return rollout


def proposal(settings: Deployment) -> Proposal:
    found = state(settings).proposal
    assert found is not None
    return found


def signed(settings: Deployment, key: Path, folder: Path, line: str = "") -> str:
    """A signature that ssh-keygen made elsewhere, as a file."""
    command = ["ssh-keygen", "-Y", "sign", "-n", "preference-tuning", "-f", str(key)]
    text = line or approval_line(proposal(settings))
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    (folder / "approval.sig").write_text(done.stdout)
    return str(folder / "approval.sig")


def test_an_approval_lets_the_candidate_in(settings: Deployment, waiting: str, keys: dict[str, Path], capsys) -> None:
    assert main(["approve", "--rollout", waiting, "--key", str(keys["ada"]), "--reason", "looked at it"]) == 0
    assert "is approved by ada@example.org" in capsys.readouterr().out
    assert state(settings).phase is Phase.APPROVED
    look(settings, 1010.0)
    assert (state(settings).phase, state(settings).canary_weight) == (Phase.SHIFTING, 5)


def test_an_approval_is_in_the_audit_log(settings: Deployment, waiting: str, keys: dict[str, Path]) -> None:
    main(["approve", "--key", str(keys["ada"]), "--reason", "looked at it"])
    assert decided(settings) == [("approve", "ada@example.org", "looked at it")]
    [entry] = [e for e in audit.entries(settings.store()) if e.kind == "approval"]
    made = proposal(settings)
    assert (entry.detail["digest"], entry.detail["bundle"]) == (made.version.model.digest, made.bundle_digest)
    assert entry.detail["key"].startswith("SHA256:")


def test_without_a_key_it_shows_what_to_sign(
    settings: Deployment, waiting: str, keys: dict[str, Path], tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it shows for a signature made elsewhere works as it is typed."""
    assert main(["approve"]) == 1
    out = capsys.readouterr().out
    assert approval_line(proposal(settings)) in out
    assert "proposed by bob" in out
    monkeypatch.chdir(tmp_path)
    lines = dict(line.split(":", 1) for line in out.splitlines() if line.startswith(("elsewhere:", "and then:")))
    typed = lines["elsewhere"].replace("KEY", str(keys["ada"]))
    subprocess.run(["bash", "-c", typed], check=True, capture_output=True)
    words = shlex.split(lines["and then"])
    assert main(words[words.index("rollout") + 1 :]) == 0
    assert state(settings).phase is Phase.APPROVED


def test_who_proposed_it_is_refused(settings: Deployment, waiting: str, keys: dict[str, Path], capsys) -> None:
    assert main(["approve", "--key", str(keys["bob"])]) == 2
    assert "bob@example.org proposed this candidate as bob. Ask somebody else" in capsys.readouterr().err
    assert (state(settings).phase, decided(settings)) == (Phase.GATED, [])


def test_an_approval_counts_once(
    settings: Deployment, waiting: str, keys: dict[str, Path], tmp_path: Path, capsys
) -> None:
    file = signed(settings, keys["ada"], tmp_path)
    assert main(["approve", "--signature", file]) == 0
    assert main(["approve", "--signature", file]) == 1
    assert "is approved, and nothing is there to approve" in capsys.readouterr().out
    assert len(decided(settings)) == 1


def test_an_approval_of_an_earlier_candidate_is_refused(
    settings: Deployment, waiting: str, keys: dict[str, Path], tmp_path: Path, capsys
) -> None:
    line = approval_line(proposal(settings)).replace(proposal(settings).version.model.digest, "0" * 64)
    assert main(["approve", "--signature", signed(settings, keys["ada"], tmp_path, line)]) == 2
    assert "is not of this line" in capsys.readouterr().err
    assert state(settings).phase is Phase.GATED


def test_an_approval_after_an_abort_is_refused(
    settings: Deployment, waiting: str, keys: dict[str, Path], tmp_path: Path, capsys
) -> None:
    file = signed(settings, keys["ada"], tmp_path)
    main(["abort", "--reason", "no"])
    assert main(["approve", "--signature", file]) == 2
    assert f"No rollout waits for an approval: the last one, {waiting}, is aborted" in capsys.readouterr().err
    assert state(settings).phase is Phase.ABORTED


def test_an_approval_for_another_rollout_is_refused(
    settings: Deployment, waiting: str, keys: dict[str, Path], capsys
) -> None:
    assert main(["approve", "--rollout", "000000000000", "--key", str(keys["ada"])]) == 1
    assert f"which is {waiting}" in capsys.readouterr().out
    assert state(settings).phase is Phase.GATED


def test_nothing_moves_before_somebody_approves(settings: Deployment, waiting: str) -> None:
    for n in range(4, 100):
        look(settings, 1000.0 + n)
    assert state(settings).phase is Phase.GATED


def test_without_signers_in_the_recipe_nobody_approves(
    settings: Deployment, waiting: str, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    words = shlex.join([*settings.overrides[:-1], "rollout.approval=null"])
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", words)
    assert main(["approve", "--key", str(keys["ada"])]) == 2
    assert "The recipe names nobody who may sign" in capsys.readouterr().err


def test_where_a_proxy_says_who_one_is_it_names_the_page(
    settings: Deployment, waiting: str, keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    proxy = '{"approvers":["ada@example.org"],"origin":"https://models.example.org"}'
    words = shlex.join([*settings.overrides[:-1], f"rollout.approval.proxy={proxy}"])
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", words)
    assert main(["approve"]) == 1
    out = capsys.readouterr().out
    assert "in a browser: https://models.example.org/-/approval" in out and "Sign this line" not in out
    assert main(["approve", "--key", str(keys["ada"])]) == 2
    assert "Approve it on https://models.example.org/-/approval" in capsys.readouterr().err
    given = gateway_settings(deployment()).approval
    assert given is not None and given.approvers == ("ada@example.org",)
