"""A person's approval of a candidate: of exactly one rollout, model and evidence, by somebody who did not propose it.

Who they are says the SSH key that signed one line, or the proxy that authenticated them. Owns the line and who may not
approve. Refuses to say whether a rollout waits for one: the record does (decision.py).
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.rollout.record import ApprovalRecord, Proposal
from pipeline.signatures import signer

LAUNCHED_BY = "launched_by"
"""On a run: the account that launched it."""


def approval_line(proposal: Proposal) -> str:
    """What is signed, to the byte: one line with its end."""
    version, bundle = proposal.version, proposal.bundle_digest
    return f"approve rollout {proposal.rollout} model {version.model.digest} evidence {bundle}\n"


def verified(signature: str, proposal: Proposal, signers: Path) -> ApprovalRecord:
    """The approval of exactly this proposal that a signature is; whoever doubts it later checks the signature again.

    `signers`: names and public keys, in the format of ssh-keygen's ALLOWED SIGNERS. Raises ValueError for a signature
    of another line, by nobody of the file, by a key of several names, or by who proposed the candidate.
    """
    by, key = signer(signature, approval_line(proposal), signers)
    return _by_another(proposal, by, str(signers)).model_copy(update={"key": key, "signature": signature})


def named_by_proxy(by: str, header: str, proposal: Proposal) -> ApprovalRecord:
    """The approval of exactly this proposal by a person whom a proxy authenticated, and named in `header`.

    Raises ValueError for who proposed the candidate.
    """
    return _by_another(proposal, by, "the approvers").model_copy(update={"header": header})


def own_candidate(proposal: Proposal, by: str, others: str) -> str:
    """Why this person may not approve a proposal, or "". `others`: where those are named who may."""
    proposed_by = proposal.proposed_by
    if not proposed_by:
        return "Who proposed the candidate is not on record, and nobody approves their own. Propose it anew."
    if same_person(by, proposed_by):
        return f"{by} proposed this candidate as {proposed_by}. Ask somebody else of {others} to approve."
    return ""


def _by_another(proposal: Proposal, by: str, others: str) -> ApprovalRecord:
    if own := own_candidate(proposal, by, others):
        raise ValueError(own)
    return ApprovalRecord(
        rollout=proposal.rollout,
        model_digest=proposal.version.model.digest,
        bundle_digest=proposal.bundle_digest,
        by=by,
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
