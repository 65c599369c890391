"""What people are told of a rollout without asking: one message to a webhook when somebody should know or decide.

The record is the outbox (`pipeline.rollout.outbox`): its events say what is to be told. A message
never quotes a prompt or the text of an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.rollout.outbox import Notice, OutboxFolder, send
from pipeline.rollout.record import TERMINAL, Phase, Proposal, RolloutEvent, read_events

LONGEST_REASON = 300
NOT_OBEYED_AFTER = 3
"""Ticks in a row in which the router did not read 0%, after which a person is told."""


def notices(events: Sequence[RolloutEvent]) -> list[Notice]:
    """What the log has to tell, in order. Pure."""
    result: list[Notice] = []
    proposal: Proposal | None = None
    before, unread, by = Phase.IDLE, 0, ""
    for event in events:
        proposal = event.proposal or proposal
        assert proposal is not None, "an event belongs to a rollout"
        disobeyed = event.missed and event.phase is before is Phase.ROLLING_BACK
        unread = unread + 1 if disobeyed else 0
        by = event.by or (by if event.phase in (Phase.ROLLING_BACK, *TERMINAL) else "")
        if words := _words(event, before, proposal, unread, by):
            version = proposal.version
            subject = f"{version.name} version {version.version} ({version.model.digest[:12]})"
            result.append(Notice(event.epoch, f"{subject}, rollout {event.rollout}: {words}"))
        before = event.phase
    return result


def due(store: Store, model_name: str) -> list[Notice]:
    """What was not told yet; where nothing ever was, of the latest rollout alone."""
    events = read_events(store, model_name)
    box = _box(model_name).read(store)
    opened = max((event.epoch for event in events if event.proposal is not None), default=1)
    sent = opened - 1 if box is None else box.sent
    return [notice for notice in notices(events) if notice.epoch > sent]


def tell(store: Store, model_name: str, url: str, now: float) -> str:
    """Send what is due, as one message; why that failed, or "". Takes a few seconds at the most, and never raises."""
    return send(store, _box(model_name), lambda: due(store, model_name), url, now)


def _words(event: RolloutEvent, before: Phase, proposal: Proposal, unread: int, by: str) -> str:
    moved, decide = event.phase is not before, "Decide: pt rollout status"
    if unread == NOT_OBEYED_AFTER:
        return f"NOT OBEYED. It is to go back to 0%, and the router does not read that. {decide}"
    if not moved:
        return ""
    if event.phase is Phase.GATED and proposal.policy.needs_approval:
        return "APPROVAL WANTED before its first weight: pt rollout approve"
    if event.phase is Phase.HELD:
        return f"HELD: {_reason(event, by)} {decide}"
    if event.phase is Phase.ROLLED_BACK:
        return f"ROLLED BACK: the router reads 0%. {_reason(event, by)}"
    if event.phase is Phase.ABORTED:
        return f"ABORTED: the router reads 0%. {_reason(event, by)}"
    return f"PROMOTED: it serves all requests. {_reason(event, by)}" if event.phase is Phase.PROMOTED else ""


def _reason(event: RolloutEvent, by: str) -> str:
    """Why, in the rules' words or a person's own; what a source or a router raised stays in the record."""
    text = "looks in a row saw nothing usable" if event.missed else " ".join(event.reason.split())
    short = text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…"
    sentence = f"{short[:1].upper()}{short[1:]}" if short else "No reason is on record"
    return f"{sentence}{f' (by {by})' if by else ''}."


def _box(model_name: str) -> OutboxFolder:
    return OutboxFolder(layout.rollout(model_name), model_name, "pt rollout history")
