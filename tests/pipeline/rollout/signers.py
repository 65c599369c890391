"""Keys of real people for the tests: made, and used, by the real ssh-keygen."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_ssh_keygen = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed (apt-get install openssh-client)"
)


def new_key(folder: Path, name: str) -> Path:
    """An Ed25519 key without a passphrase; its public half lies beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return folder / name


def signer_line(names: str, key: Path, options: str = "") -> str:
    """The line of a file of signers that gives this key these names."""
    algorithm, public = key.with_suffix(".pub").read_text().split()[:2]
    return " ".join(filter(None, (names, options, algorithm, public)))


def signers_file(folder: Path, *lines: str) -> Path:
    file = folder / "allowed_signers"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file
