"""Notices to people: one POST to a webhook, tried again by the next tick while the receiver is down.
The rollout's events say what is to be told; no message quotes a prompt or the text of an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from pipeline.core import layout
from pipeline.core.storage import Record, Store
from pipeline.rollout.record import TERMINAL, Phase, Proposal, RolloutEvent, read_events

ANSWERS_WITHIN_S = 5.0
MARK = "notices.json"
MOST_LINES = 10
"""Of one message; of more, the newest."""
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
    """One line of a message. `epoch`: its place among all of them."""

    epoch: int
    text: str


class Told(Record):
    """The last epoch that was told."""

    sent: int


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
        if event.phase is Phase.GATED is not before and proposal.policy.needs_approval:
            words = "APPROVAL WANTED before its first weight: pt rollout approve"
        if unread == NOT_OBEYED_AFTER:
            words = "NOT OBEYED. It is to go back to 0%, and the router does not read that. Decide: pt rollout status"
        if words:
            version = proposal.version
            subject = f"{version.name} version {version.version} ({version.model.digest[:12]})"
            result.append(Notice(event.epoch, f"{subject}, rollout {event.rollout}: {words}"))
        before = event.phase
    return result


def _reason(event: RolloutEvent, by: str) -> str:
    """Why, in the rules' words or a person's own; what a source or a router raised stays in the record."""
    text = "looks in a row saw nothing usable" if event.missed else " ".join(event.reason.split())
    short = text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…"
    sentence = f"{short[:1].upper()}{short[1:]}" if short else "No reason is on record"
    return f"{sentence}{f' (by {by})' if by else ''}."


def due(store: Store, model_name: str) -> list[Notice]:
    """What was not told yet; where nothing ever was, of the latest rollout alone."""
    events, told = read_events(store, model_name), store.read(layout.rollout(model_name, MARK), Told)
    opened = max((event.epoch for event in events if event.proposal is not None), default=1)
    sent = opened - 1 if told is None else told.sent
    return [notice for notice in notices(events) if notice.epoch > sent]


def tell(store: Store, model_name: str, url: str) -> str:
    """Send what is due, as one message; why that failed, or ""."""
    mark = layout.rollout(model_name, MARK)
    try:
        return send(store, mark, due(store, model_name), url, "pt report") if url else ""
    except (OSError, ValueError) as error:  # no traffic waits for a message
        return str(error)


def send(store: Store, mark: str, waiting: Sequence[Notice], url: str, earlier: str) -> str:
    """Post `{"text": ...}`, as Slack's incoming webhooks take it, and note at `mark` what was told; why that failed, or
    "". The URL is a secret: only its host is named. `earlier`: the command that shows the rest."""
    import httpx2

    if not url or not waiting:
        return ""
    lines = [notice.text for notice in waiting[-MOST_LINES:]]
    if left_out := len(waiting) - len(lines):
        lines.insert(0, f"{left_out} earlier ones: {earlier}")
    # Slack reads <!channel> and links out of a text; a person's reason is to stay what it is.
    text = "\n".join(lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    host = urlsplit(url).hostname or "NOTIFY_URL"
    try:
        status = httpx2.post(url, json={"text": text}, timeout=ANSWERS_WITHIN_S, follow_redirects=False).status_code
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return f"{host} cannot be reached ({type(error).__name__})"
    if status >= 300:
        return f"{host} answered {status}"
    store.write(mark, Told(sent=waiting[-1].epoch))
    return ""
