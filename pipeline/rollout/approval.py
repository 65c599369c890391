"""A person's approval of a candidate: one line that names rollout, model and evidence, signed with their SSH key.

Dagster and MLflow don't know who clicked. `ssh-keygen -Y verify` does, by a file of names and public keys; so the name
comes from the key that signed, never from what somebody says of themselves. Owns the line, the signature and who may
not approve. Refuses to say whether a rollout waits for one: the record does (decision.py).
"""

from __future__ import annotations

import base64
import os
import pwd
import re
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.rollout.record import ApprovalRecord, Proposal

NAMESPACE = "preference-tuning"
"""What a signature is for: one that was made for git or for files is refused."""
LAUNCHED_BY = "launched_by"
"""On a run: the account that launched it."""
VERIFIES_WITHIN_S = 20
_GOOD = re.compile(r"with \S+ key (SHA256:\S+)")


def approval_line(proposal: Proposal) -> str:
    """What is signed, to the byte: one line with its end."""
    version, bundle = proposal.version, proposal.bundle_digest
    return f"approve rollout {proposal.rollout} model {version.model.digest} evidence {bundle}\n"


def sign(line: str, key: Path) -> str:
    """The line signed with a private key, or with the agent's where `key` is a public one.

    A passphrase is asked for at the terminal. Raises ValueError when nothing was signed.
    """
    done = _ssh_keygen(["sign", "-n", NAMESPACE, "-f", str(key)], line, within_s=None)
    if done.returncode or not done.stdout:
        raise ValueError(f"Nothing was signed with {key}: {_last_line(done)}. Give a key that this account may use.")
    return done.stdout


def verified(signature: str, proposal: Proposal, signers: Path) -> ApprovalRecord:
    """The approval of exactly this proposal that a signature is; whoever doubts it later checks the signature again.

    `signers`: names and public keys, in the format of ssh-keygen's ALLOWED SIGNERS. Raises ValueError for a signature
    of another line, by nobody of the file, by a key of several names, or by who proposed the candidate.
    """
    line, proposed_by = approval_line(proposal), proposal.proposed_by
    if not signers.is_file():
        raise ValueError(f"There is no file {signers}. Name the people who may approve in it, a line for each key.")
    with tempfile.TemporaryDirectory(prefix="approval-") as folder:
        file = Path(folder) / "signature"
        file.write_text(signature)
        by = _name(file, signers)
        done = _ssh_keygen(["verify", "-f", str(signers), "-I", by, "-n", NAMESPACE, "-s", str(file)], line)
    key = _GOOD.search(done.stdout)
    if done.returncode or key is None:
        raise ValueError(
            f"The signature of {by} is not of this line ({_last_line(done)}). It may be of another rollout, model or "
            f"evidence; sign exactly: {line.rstrip()}"
        )
    if not proposed_by:
        raise ValueError("Who proposed the candidate is not on record, and nobody approves their own. Propose it anew.")
    if same_person(by, proposed_by):
        raise ValueError(f"{by} proposed this candidate as {proposed_by}. Ask somebody else of {signers} to approve.")
    return ApprovalRecord(
        rollout=proposal.rollout,
        model_digest=proposal.version.model.digest,
        bundle_digest=proposal.bundle_digest,
        by=by,
        key=key.group(1),
        signature=signature,
    )


def same_person(signer: str, account: str) -> bool:
    """Whether a signer's name is a login name, with or without a domain: `ada@example.org` is the account `ada`."""
    names = {signer.casefold(), account.casefold()}
    return len(names) == 1 or len({name.partition("@")[0] for name in names}) == 1


def proposer(tags: Mapping[str, str], account: str) -> str:
    """Who proposes in a run with these tags: a schedule or a sensor, else who launched it, else the step's account."""
    for kind in ("schedule", "sensor"):
        if name := tags.get(f"dagster/{kind}_name"):
            return f"{kind} {name}"
    return tags.get(LAUNCHED_BY, "") or account


def account() -> str:
    """The login name of whoever runs this; the number of the account where it has no name, as in a container."""
    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return f"uid {os.getuid()}"


def _name(signature: Path, signers: Path) -> str:
    """The one name that the file gives to the key which signed."""
    done = _ssh_keygen(["find-principals", "-s", str(signature), "-f", str(signers)], "")
    names = done.stdout.split("\n")[:-1]
    if done.returncode or not names:
        reason = next((line for line in done.stderr.splitlines() if "rincipal" not in line), "the key is not in it")
        raise ValueError(f"Nobody of {signers} signed this: {reason}. Ask one of the people in it, or add the key.")
    # ssh-keygen stops at the first line that fits: by another line of the same key its owner could be somebody else.
    key = _public_key(signature.read_text())
    lines = [line for line in signers.read_text().splitlines() if key in line.split() and not line.startswith("#")]
    if len(names) > 1 or len(lines) > 1 or set("*?!,") & set(names[0]):
        written = "; ".join(line.split()[0] for line in lines)
        raise ValueError(f"{signers} gives the key that signed the names {written}. Give each key one line and name.")
    return names[0]


def _public_key(signature: str) -> str:
    """The public key inside an armoured signature (OpenSSH's PROTOCOL.sshsig), as a file of signers has it."""
    content = base64.b64decode("".join(signature.split("-----")[2].split()))
    start = len("SSHSIG") + 4  # the magic word, then a version; then the key with its length before it
    size = int.from_bytes(content[start : start + 4])
    return base64.b64encode(content[start + 4 : start + 4 + size]).decode()


def _ssh_keygen(
    arguments: list[str], text: str, within_s: float | None = VERIFIES_WITHIN_S
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["ssh-keygen", "-Y", *arguments], input=text, capture_output=True, text=True, check=False, timeout=within_s
        )
    except FileNotFoundError as error:
        raise ValueError(
            "ssh-keygen is not there. Install OpenSSH's client (apt-get install openssh-client)."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"ssh-keygen did not answer within {within_s} s. Try again.") from error


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The reason, as ssh-keygen puts it."""
    lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("Signing")]
    return lines[0].strip() if lines else f"ssh-keygen ended with {done.returncode}"
