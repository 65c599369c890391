"""What people are told of a rollout, by its events, and the POST to a webhook. No message quotes a prompt or an error's
text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from pipeline.rollout.record import TERMINAL, Phase, Proposal, RolloutEvent

ANSWERS_WITHIN_S = 5.0
LONGEST_REASON = 300
NOT_OBEYED_AFTER = 3
"""Ticks in a row in which the router did not read 0%, after which a notice is sent."""
WORDS = {
    Phase.HELD: "HELD: {} Decide: pt rollout status",
    Phase.ROLLED_BACK: "ROLLED BACK: the router reads 0%. {}",
    Phase.ABORTED: "ABORTED: the router reads 0%. {}",
    Phase.PROMOTED: "PROMOTED: it serves all requests. {}",
}


class Notice(NamedTuple):
    """One line of a message. `place`: among those of its kind."""

    kind: str
    place: int
    text: str


def notices(events: Sequence[RolloutEvent]) -> list[Notice]:
    """What the log has to tell, in order. Pure."""
    result: list[Notice] = []
    proposal: Proposal | None = None
    before, unread, by = Phase.IDLE, 0, ""
    for event in events:
        proposal = event.proposal or proposal
        assert proposal is not None, "an event belongs to a rollout"
        unread = unread + 1 if event.missed and event.phase is before is Phase.ROLLING_BACK else 0
        by = event.by or (by if event.phase in (Phase.ROLLING_BACK, *TERMINAL) else "")
        words = WORDS.get(event.phase, "").format(_reason(event, by)) if event.phase is not before else ""
        if event.phase is Phase.GATED is not before and proposal.policy.approvers:
            words = "APPROVAL WANTED before its first weight: pt rollout approve"
        if unread == NOT_OBEYED_AFTER:
            words = "NOT OBEYED. It is to go back to 0%, and the router does not read that. Decide: pt rollout status"
        if words:
            version = proposal.version
            subject = f"{version.name} version {version.version} ({version.model.digest[:12]})"
            result.append(Notice("rollout", event.epoch, f"{subject}, rollout {event.rollout}: {words}"))
        before = event.phase
    return result


def _reason(event: RolloutEvent, by: str) -> str:
    """Why, in the rules' words or a person's own; what a source or a router raised stays in the record."""
    text = "looks in a row saw nothing usable" if event.missed else " ".join(event.reason.split())
    short = text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…"
    sentence = f"{short[:1].upper()}{short[1:]}" if short else "No reason is on record"
    return f"{sentence}{f' (by {by})' if by else ''}."


def post(lines: Sequence[str], url: str) -> str:
    """Post `{"text": ...}`, as Slack's incoming webhooks take it; why that failed, or "". The URL is a secret: only its
    host is named."""
    import httpx2

    # Slack reads <!channel> and links out of a text; a person's reason is to stay what it is.
    text = "\n".join(lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    host = urlsplit(url).hostname or "NOTIFY_URL"
    try:
        status = httpx2.post(url, json={"text": text}, timeout=ANSWERS_WITHIN_S, follow_redirects=False).status_code
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return f"{host} cannot be reached ({type(error).__name__})"
    return f"{host} answered {status}" if status >= 300 else ""
