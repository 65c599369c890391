"""Signatures by the real ssh-keygen: whose they are, what they are of, and whose are refused."""

import subprocess
from pathlib import Path

import pytest

from pipeline.rollout.approval import approval_line, proposer, verified
from pipeline.rollout.record import ApprovalRecord, fits
from pipeline.signatures import NAMESPACE, sign
from tests.pipeline.rollout.reports import proposal
from tests.pipeline.rollout.signers import needs_ssh_keygen, new_key, signer_line, signers_file

MADE = proposal(proposed_by="bob")
LINE = approval_line(MADE)


@pytest.fixture
def ada(tmp_path: Path) -> Path:
    return new_key(tmp_path / "keys", "ada")


@pytest.fixture
def signers(tmp_path: Path, ada: Path) -> Path:
    return signers_file(tmp_path, signer_line("ada@example.org", ada))


def asked(signature: str, signers: Path, proposed_by: str = "bob") -> ApprovalRecord:
    return verified(signature, proposal(proposed_by=proposed_by), signers)


@needs_ssh_keygen
def test_an_approval_has_the_name_of_the_key_that_signed(ada: Path, signers: Path) -> None:
    approval = asked(sign(LINE, ada), signers)
    fingerprint = subprocess.run(["ssh-keygen", "-l", "-f", ada], capture_output=True, text=True, check=True).stdout
    assert approval.by == "ada@example.org"
    assert fits(MADE, approval)
    assert approval.key in fingerprint.split()
    assert asked(approval.signature, signers) == approval


@needs_ssh_keygen
@pytest.mark.parametrize("changed", ["rollout", "digest", "bundle"])
def test_a_signature_of_another_line_is_refused(changed: str, ada: Path, signers: Path) -> None:
    other = proposal(**{changed: "0" * 12})
    with pytest.raises(ValueError, match=r"not of this line.*sign exactly: approve rollout 3f9c1a2b4d5e"):
        asked(sign(approval_line(other), ada), signers)


@needs_ssh_keygen
def test_a_signature_for_another_purpose_is_refused(ada: Path, signers: Path) -> None:
    command = ["ssh-keygen", "-Y", "sign", "-n", "git", "-f", str(ada)]
    signature = subprocess.run(command, input=LINE, capture_output=True, text=True, check=True).stdout
    with pytest.raises(ValueError, match="namespace does not match"):
        asked(signature, signers)
    assert NAMESPACE != "git"


@needs_ssh_keygen
@pytest.mark.parametrize("account", ["ada", "ADA", "ada@example.org", "ada@elsewhere.example.org"])
def test_who_proposed_a_candidate_does_not_approve_it(account: str, ada: Path, signers: Path) -> None:
    with pytest.raises(ValueError, match=rf"ada@example.org proposed this candidate as {account}. Ask somebody else"):
        asked(sign(LINE, ada), signers, proposed_by=account)


@needs_ssh_keygen
def test_without_a_proposer_on_record_nobody_approves(ada: Path, signers: Path) -> None:
    with pytest.raises(ValueError, match="Who proposed the candidate is not on record"):
        asked(sign(LINE, ada), signers, proposed_by="")


@needs_ssh_keygen
def test_a_stranger_s_key_is_refused(tmp_path: Path, signers: Path) -> None:
    with pytest.raises(ValueError, match=r"Nobody of .* signed this"):
        asked(sign(LINE, new_key(tmp_path, "eve")), signers)


@needs_ssh_keygen
def test_a_key_that_expired_is_refused_with_the_reason(tmp_path: Path, ada: Path) -> None:
    signers = signers_file(tmp_path, signer_line("ada@example.org", ada, 'valid-before="20200101"'))
    with pytest.raises(ValueError, match="key has expired"):
        asked(sign(LINE, ada), signers)


@needs_ssh_keygen
def test_other_people_and_comments_name_no_key_of_mine(tmp_path: Path, ada: Path) -> None:
    others = signer_line("eve@example.org", new_key(tmp_path, "eve"))
    former = f"# {signer_line('ada@elsewhere.example.org', ada)}"
    signers = signers_file(tmp_path, others, former, signer_line("ada@example.org", ada))
    assert asked(sign(LINE, ada), signers).by == "ada@example.org"


@needs_ssh_keygen
@pytest.mark.parametrize("names", ["ada,bob", "*", "*@example.org", "a?a"])
def test_a_key_of_several_names_is_refused(names: str, tmp_path: Path, ada: Path) -> None:
    """Who proposed as `ada` would approve as `bob`."""
    with pytest.raises(ValueError, match="Give each key one line and name"):
        asked(sign(LINE, ada), signers_file(tmp_path, signer_line(names, ada)), proposed_by="carol")


@needs_ssh_keygen
def test_a_key_in_two_lines_has_one_name(tmp_path: Path, ada: Path) -> None:
    """ssh-keygen stops at the first; the second name would let its owner approve what they proposed."""
    signers = signers_file(tmp_path, signer_line("bob", ada), signer_line("ada", ada))
    with pytest.raises(ValueError, match=r"names bob; ada. Give each key one line"):
        asked(sign(LINE, ada), signers, proposed_by="ada")


@needs_ssh_keygen
@pytest.mark.parametrize("signature", ["", "yes, of course", "-----BEGIN SSH SIGNATURE-----\nAAAA\n"])
def test_what_is_no_signature_is_refused(signature: str, signers: Path) -> None:
    with pytest.raises(ValueError, match="signed this"):
        asked(signature, signers)


@needs_ssh_keygen
def test_a_key_that_is_not_there_signs_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Nothing was signed with .*nowhere"):
        sign(LINE, tmp_path / "nowhere")


def test_without_a_file_of_signers_nobody_approves(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"There is no file .*Name the people who may sign"):
        asked("signature", tmp_path / "allowed_signers")


@needs_ssh_keygen
def test_without_ssh_keygen_it_says_what_to_install(
    tmp_path: Path, ada: Path, signers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="apt-get install openssh-client"):
        asked("signature", signers)


@pytest.mark.parametrize(
    ("tags", "who"),
    [
        ({}, "ada"),
        ({"launched_by": "bob"}, "bob"),
        ({"launched_by": "daemon", "dagster/schedule_name": "nightly"}, "schedule nightly"),
        ({"launched_by": "daemon", "dagster/sensor_name": "champion_changed"}, "sensor champion_changed"),
    ],
)
def test_the_proposer_is_who_launched_the_run(tags: dict[str, str], who: str) -> None:
    assert proposer(tags, "ada") == who
