"""Who may approve a candidate: a person whom the recipe names, and who did not propose it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from contextlib import suppress

LAUNCHED_BY = "launched_by"
"""On a run: the account that launched it."""


def approval_refusal(by: str, approvers: Sequence[str], proposed_by: str) -> str:
    """Why a person may not approve a candidate, or ""."""
    if by not in approvers:
        return f"{by.strip() or 'nobody'} is not among rollout.approvers ({', '.join(approvers) or 'nobody is'})"
    if not proposed_by:
        return "who proposed the candidate is not on record, and nobody approves their own: propose it anew"
    if same_person(by, proposed_by):
        return f"{by} proposed this candidate as {proposed_by}: somebody else of rollout.approvers has to approve it"
    return ""


def same_person(name: str, account: str) -> bool:
    """Whether a name is a login name, with or without a domain: `ada@example.org` is the account `ada`."""
    names = {name.casefold(), account.casefold()}
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
