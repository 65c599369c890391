"""`pt governance accept`: a person's signature that the audit log was restored from a backup, and what it lost.

Owns what has to be in order before: the log itself, and every user whom the backup has again. Refuses to write an entry
without a signature by somebody of the file of signers.
"""

import argparse
import json
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

from assets.anchors import forgotten_elsewhere
from assets.environment import environment
from assets.resources import Deployment
from jobs.anchoring import anchors_everywhere, command_instance
from pipeline import audit
from pipeline.audit_anchors import log_identity
from pipeline.audit_restored import RESTORED, Restore, accepted, excused, missing_heads
from pipeline.signatures import NAMESPACE, sign, signer
from pipeline.storage import Store


def arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--reason", required=True, help="which backup was restored, and why; part of what is signed")
    command.add_argument("--line", type=int, default=0, help="the line of the log that a signature names; the last one")
    how = command.add_mutually_exclusive_group()
    how.add_argument("--key", type=Path, help="your SSH key: signs here; of a public one, ssh-agent does")
    how.add_argument("--signature", type=Path, help="file that ssh-keygen -Y sign made elsewhere; - reads it")


def signers_file() -> Path | None:
    """Who may accept a restored log; None where nobody is named."""
    name = environment().audit_signers
    return Path(name) if name else None


def run(settings: Deployment, asked: argparse.Namespace) -> int:
    store, signers = settings.store(), signers_file()
    if signers is None:
        raise ValueError(
            "Nobody is named who may accept a restored log. Set AUDIT_SIGNERS to a file of names and public keys, in "
            "the format of ssh-keygen's ALLOWED SIGNERS, where who writes to the data root cannot write."
        )
    restore = _restore(settings, store, signers, asked.reason, asked.line)
    if asked.signature is not None:
        signature = sys.stdin.read() if str(asked.signature) == "-" else asked.signature.read_text()
    elif asked.key is not None:
        signature = sign(restore.signed_line(), asked.key)
    else:
        print("\n".join(_how_to_sign(restore)))
        return 1
    by, key = signer(signature, restore.signed_line(), signers)
    restore = restore.model_copy(update={"by": by, "signature": signature})
    audit.record(store, RESTORED, key, restore.model_dump(mode="json"), datetime.now(UTC))
    line = f"{by} accepted that this log lacks {restore.gap()}. Every verify shows it from now on."
    print(json.dumps({"by": by, "lost": len(restore.lost)}, indent=2) if asked.json else line)
    return 0


def _restore(settings: Deployment, store: Store, signers: Path, reason: str, line: int) -> Restore:
    """What is to be signed. Raises ValueError where nothing is, or something else has to come first."""
    checked = audit.verify(store)
    if checked.flaw:
        raise ValueError(f"{store.path(audit.LOG)}, line {checked.line}: {checked.flaw}. No backup makes that.")
    _refuse_unforgotten(store)
    log = log_identity(store)
    before = accepted(store, log, signers)
    if before.flaws:
        raise ValueError("; ".join(before.flaws))
    anchors, why_not = anchors_everywhere(settings)
    here = [each for each in anchors if each.root == str(store.root)]
    lost = missing_heads(store, log, excused(here, before.lost()))
    if not lost:
        hint = f" {' '.join(why_not)}" if why_not else ""
        raise ValueError(f"No anchor disagrees with this log, so there is nothing to accept.{hint}")
    digests = {entry.n: entry.digest for entry in audit.entries(store)}
    line = line or checked.entries
    if line not in digests:
        raise ValueError(f"The log has {checked.entries} lines, and none of number {line}.")
    return Restore(log=log, line=line, digest=digests[line], lost=lost, reason=reason)


def _refuse_unforgotten(store: Store) -> None:
    try:
        with command_instance() as instance:
            users = len(forgotten_elsewhere(instance, store))
    except FileNotFoundError:
        return
    if users:
        raise ValueError(f"{users} users were forgotten and are here again. Run first: pt governance reapply")


def _how_to_sign(restore: Restore) -> list[str]:
    line = restore.signed_line().rstrip()
    again = f"pt governance accept --line {restore.line} --reason {shlex.quote(restore.reason)}"
    return [
        f"Nothing was accepted yet. This log lacks {restore.gap()}. Sign this line, if you know why:",
        f"  {line}",
        f"here:      {again} --key ~/.ssh/id_ed25519",
        f"elsewhere: echo {shlex.quote(line)} | ssh-keygen -Y sign -n {NAMESPACE} -f KEY > accepted.sig",
        f"and then:  {again} --signature accepted.sig",
    ]
