"""`history`: every rollout of the model and every decision about it, each beside its entry in the audit log."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from assets.resources import Deployment
from jobs.rollout import DONE, REFUSED, AddCommand, look_command
from pipeline.core import audit
from pipeline.core.storage import Record
from pipeline.rollout.reconcile import audited
from pipeline.rollout.record import TERMINAL, Phase, Proposal, RolloutEvent, read_events


class Passage(Record):
    """One event of a rollout that changed something, or that a person asked for."""

    epoch: int
    at: float
    phase: Phase
    weight: int | None
    """Percent on the canary, where the event says so."""
    reason: str
    by: str
    entry: int | None
    """Its entry in the audit log."""
    audited: bool
    """Whether it should have one: a person's word, a look that decided, and each end do."""


class PastRollout(Record):
    """One rollout, with what happened to it."""

    rollout: str
    version: int
    digest: str
    iteration: str
    proposed_by: str
    looks: int
    passages: tuple[Passage, ...]


class _Transition(NamedTuple):
    before: Phase
    stage: int
    event: RolloutEvent


def add_to(add: AddCommand) -> None:
    command = add("history", help="every rollout and decision, with its entry in the audit log")
    command.add_argument("--looks", action="store_true", help="each look too, not only those that decided")
    command.add_argument("--json", action="store_true", help="one JSON object for each rollout")
    command.set_defaults(run=_history)


def past_rollouts(
    events: Sequence[RolloutEvent], entries: Mapping[tuple[str, int], int], looks: bool
) -> list[PastRollout]:
    """The log by rollout. `entries`: number of the audit entry of each rollout and epoch. `looks`: all of them."""
    steps: dict[str, list[_Transition]] = {}
    proposals: dict[str, Proposal] = {}
    before, stage = Phase.IDLE, 0
    for event in events:
        if event.proposal is not None:
            proposals[event.rollout] = event.proposal
        steps.setdefault(event.rollout, []).append(_Transition(before, stage, event))
        before, stage = event.phase, event.stage
    return [_past(proposals[rollout], taken, entries, looks) for rollout, taken in steps.items()]


def lines(past: Sequence[PastRollout]) -> Iterator[str]:
    if not past:
        yield "No candidate was ever rolled out."
    for each in past:
        proposed = f", proposed by {each.proposed_by}" if each.proposed_by else ""
        version = f"version {each.version} ({each.digest[:12]})"
        yield f"rollout {each.rollout}: {version}, iteration {each.iteration}{proposed}"
        for passage in each.passages:
            yield _passage_line(passage)
        yield f"        {each.looks:,} looks"
    missing = [f"{each.rollout} epoch {p.epoch}" for each in past for p in each.passages if p.audited and not p.entry]
    if missing:
        yield f"Not in the audit log: {', '.join(missing)}. The next look writes them: {look_command()}"
    elif past:
        yield "Every decision has its entry in the audit log; to check that log: pt governance verify"


def _past(
    proposal: Proposal, taken: Sequence[_Transition], entries: Mapping[tuple[str, int], int], looks: bool
) -> PastRollout:
    version, rollout = proposal.version, proposal.rollout
    passages = tuple(
        Passage(
            epoch=step.event.epoch,
            at=step.event.at,
            phase=step.event.phase,
            weight=_weight(step.event, proposal),
            reason=step.event.reason,
            by=step.event.by,
            entry=entries.get((rollout, step.event.epoch)),
            audited=audited(step.before, step.event) is not None,
        )
        for step in taken
        if looks or _moved(step) or step.event.by or audited(step.before, step.event)
    )
    return PastRollout(
        rollout=rollout,
        version=version.version,
        digest=version.model.digest,
        iteration=version.iteration,
        proposed_by=proposal.proposed_by,
        looks=sum(step.event.look is not None or step.event.missed for step in taken),
        passages=passages,
    )


def _moved(step: _Transition) -> bool:
    return (step.event.phase, step.event.stage) != (step.before, step.stage) or step.event.proposal is not None


def _weight(event: RolloutEvent, proposal: Proposal) -> int | None:
    if event.phase in (Phase.SHIFTING, Phase.OBSERVING):
        return proposal.policy.weight_at(event.stage)
    if event.weight is not None:
        return event.weight
    return 0 if event.phase in TERMINAL - {Phase.PROMOTED} else None


def _passage_line(passage: Passage) -> str:
    when = f"{datetime.fromtimestamp(passage.at, UTC):%Y-%m-%d %H:%M:%S}"
    weight = "" if passage.weight is None else f"{passage.weight}%"
    by = f" (by {passage.by})" if passage.by else ""
    entry = f" [audit {passage.entry}]" if passage.entry else ""
    return f"{passage.epoch:>6}  {when}  {passage.phase:<12} {weight:>4}  {passage.reason}{by}{entry}"


def _history(settings: Deployment, asked: argparse.Namespace) -> int:
    store = settings.store()
    entries = {
        (entry.subject.partition("/")[0], int(entry.detail["epoch"])): entry.n
        for entry in audit.entries(store)
        if "epoch" in entry.detail
    }
    past = past_rollouts(read_events(store, settings.recipe().base_model.name), entries, asked.looks)
    if asked.json:
        print("\n".join(json.dumps(each.model_dump(mode="json")) for each in past))
    else:
        print("\n".join(lines(past)))
    return DONE if past else REFUSED
