"""A person's word on one line: signed with their SSH key, and checked against a file of names and public keys.

Dagster and MLflow don't know who clicked. `ssh-keygen -Y verify` does; so the name comes from the key that signed,
never from what somebody says of themselves. Owns making a signature and reading whose it is. Refuses to know what is
signed.
"""

from __future__ import annotations

import base64
import re
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

NAMESPACE = "preference-tuning"
"""What a signature is for: one that was made for git or for files is refused."""
VERIFIES_WITHIN_S = 20
_GOOD = re.compile(r"with \S+ key (SHA256:\S+)")


class Signer(NamedTuple):
    """Who signed: the name that the file gives to the key, and the key's fingerprint."""

    by: str
    key: str


def sign(line: str, key: Path) -> str:
    """The line signed with a private key, or with the agent's where `key` is a public one.

    A passphrase is asked for at the terminal. Raises ValueError when nothing was signed.
    """
    done = _ssh_keygen(["sign", "-n", NAMESPACE, "-f", str(key)], line, within_s=None)
    if done.returncode or not done.stdout:
        raise ValueError(f"Nothing was signed with {key}: {_last_line(done)}. Give a key that this account may use.")
    return done.stdout


def signer(signature: str, line: str, signers: Path, at: datetime | None = None) -> Signer:
    """Who signed exactly this line. `at`: when, for keys of a limited time; now, unless it is given.

    `signers`: names and public keys, in the format of ssh-keygen's ALLOWED SIGNERS. Raises ValueError for a signature
    of another line, by nobody of the file, or by a key of several names.
    """
    if not signers.is_file():
        raise ValueError(f"There is no file {signers}. Name the people who may sign in it, a line for each key.")
    options = ["-O", f"verify-time={at.astimezone(UTC):%Y%m%d%H%M%SZ}"] if at is not None else []
    with tempfile.TemporaryDirectory(prefix="signature-") as folder:
        file = Path(folder) / "signature"
        file.write_text(signature)
        by = _name(file, signers, options)
        command = ["verify", *options, "-f", str(signers), "-I", by, "-n", NAMESPACE, "-s", str(file)]
        done = _ssh_keygen(command, line)
    key = _GOOD.search(done.stdout)
    if done.returncode or key is None:
        raise ValueError(
            f"The signature of {by} is not of this line ({_last_line(done)}). It may be of something else that looks "
            f"alike; sign exactly: {line.rstrip()}"
        )
    return Signer(by, key.group(1))


def _name(signature: Path, signers: Path, options: list[str]) -> str:
    """The one name that the file gives to the key which signed."""
    done = _ssh_keygen(["find-principals", *options, "-s", str(signature), "-f", str(signers)], "")
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
