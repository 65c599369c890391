"""`approve`: a person's signature for exactly this rollout, model and evidence, without which it gets no traffic.

Without a key or a signature it prints the line to sign, and the page where a proxy says who one is. The name on record
is that of the key that signed.
"""

import argparse
import shlex
import sys
from pathlib import Path

from assets.resources import Deployment
from jobs.rollout import COMMAND, REFUSED, AddCommand
from jobs.rollout.decide import exit_code, outcome_lines, take
from pipeline.gateway.approvals import PATH
from pipeline.recipe.approval import Approval
from pipeline.rollout.approval import approval_line, verified
from pipeline.rollout.decision import RolloutDecision
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import ApprovalRecord, Proposal
from pipeline.signatures import NAMESPACE, sign


def add_to(add: AddCommand) -> None:
    command = add("approve", help="sign for a candidate that waits for a person before its first weight")
    command.add_argument("--rollout", default="", help="its id or its candidate's digest: refused for another one")
    command.add_argument("--reason", default="approved", help="a word on it, for the audit log")
    how = command.add_mutually_exclusive_group()
    how.add_argument("--key", type=Path, help="your SSH key: signs here; of a public one, ssh-agent does")
    how.add_argument("--signature", type=Path, help="file that ssh-keygen -Y sign made elsewhere; - reads it")
    command.set_defaults(run=_approve)


def signed_decision(settings: Deployment, signature: str, rollout: str, reason: str) -> RolloutDecision:
    """The approval of the active rollout as a decision by who signed. Raises ValueError for any other signature."""
    section = settings.recipe().rollout.approval
    if section is None or not section.allowed_signers:
        where = f" Approve it on {page_of(section)}." if section is not None else ""
        raise ValueError(
            "The recipe names nobody who may sign. Set rollout.approval.allowed_signers to a file of names and keys."
            + where
        )
    approval: ApprovalRecord = verified(signature, _proposal(settings), Path(section.allowed_signers))
    return RolloutDecision(action="approve", reason=reason, by=approval.by, rollout=rollout, approval=approval)


def page_of(section: Approval | None) -> str:
    """Address of the gateway's page of approvals; "" where the recipe has none."""
    return f"{section.proxy.origin}{PATH}" if section is not None and section.proxy is not None else ""


def how_to_approve(proposal: Proposal, section: Approval | None) -> list[str]:
    """What was proposed, and what to do to approve it."""
    version, page = proposal.version, page_of(section)
    lines = [
        f"Nothing was approved yet. Version {version.version} of {version.name} ({version.model.digest[:12]}), of "
        f"iteration {version.iteration}, was proposed by {proposal.proposed_by or 'nobody on record'}.",
        *(f"  {reason}" for reason in proposal.reasons),
    ]
    if section is None or section.allowed_signers:
        lines += _how_to_sign(proposal)
    return [*lines, f"in a browser: {page}"] if page else lines


def _how_to_sign(proposal: Proposal) -> list[str]:
    line, name = approval_line(proposal), f"approve --rollout {proposal.rollout}"
    return [
        "Sign this line:",
        f"  {line.rstrip()}",
        f"here:      {COMMAND} {name} --key ~/.ssh/id_ed25519",
        f"elsewhere: echo {shlex.quote(line.rstrip())} | ssh-keygen -Y sign -n {NAMESPACE} -f KEY > approval.sig",
        f"and then:  {COMMAND} {name} --signature approval.sig",
    ]


def _approve(settings: Deployment, asked: argparse.Namespace) -> int:
    if asked.signature is not None:
        signature = sys.stdin.read() if str(asked.signature) == "-" else asked.signature.read_text()
    elif asked.key is not None:
        signature = sign(approval_line(_proposal(settings)), asked.key)
    else:
        print("\n".join(how_to_approve(_proposal(settings), settings.recipe().rollout.approval)))
        return REFUSED
    decision = signed_decision(settings, signature, asked.rollout, asked.reason)
    done = take(settings, decision)
    print("\n".join(outcome_lines(decision, done)))
    return exit_code(decision, done)


def _proposal(settings: Deployment) -> Proposal:
    state = read_state(settings.store(), settings.recipe().base_model.name)
    if state.proposal is None or not state.active:
        ended = f": the last one, {state.rollout}, is {state.phase}" if state.proposal else ""
        raise ValueError(f"No rollout waits for an approval{ended}. To see what there is: {COMMAND} status")
    return state.proposal
