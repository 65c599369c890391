"""What people are told of a rollout without asking: one message to a webhook when somebody should know or decide.

The record is the outbox: its events say what is to be told, and a mark says up to which epoch it was. It is set after
the receiver took the message, so a crash between the two tells it twice, and never not at all. What piled up goes out
as one message, and a receiver that fails is left alone for longer each time. Owns what is worth a message and its
words: never a prompt, nor the text of an error, which may quote one. Refuses to fail a tick, or to hold it up for long.
"""

from __future__ import annotations

import fcntl
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pipeline import layout
from pipeline.rollout.record import TERMINAL, Phase, Proposal, RolloutEvent, read_events
from pipeline.storage import Record, Store

ANSWERS_WITHIN_S = 5.0
MOST_LINES = 10
"""Of one message; of more, the newest."""
LONGEST_REASON = 300
FIRST_PAUSE_S, LONGEST_PAUSE_S = 15.0, 3600.0
NOT_OBEYED_AFTER = 3
"""Ticks in a row in which the router did not read 0%, after which a person is told."""


class Notice(NamedTuple):
    """One line of a message."""

    epoch: int
    text: str


class Outbox(Record):
    """How far the record was told, and when to try again after a failure (seconds since 1970)."""

    sent: int = 0
    """The last epoch of which nothing has to be told any more."""
    failures: int = 0
    retry_at: float = 0.0


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
    box = store.read(_box(model_name), Outbox)
    opened = max((event.epoch for event in events if event.proposal is not None), default=1)
    sent = opened - 1 if box is None else box.sent
    return [notice for notice in notices(events) if notice.epoch > sent]


def tell(store: Store, model_name: str, url: str, now: float) -> str:
    """Send what is due, as one message; why that failed, or "". Takes a few seconds at the most, and never raises.

    `url`: takes a POST of `{"text": ...}`, as Slack's incoming webhooks do; "" tells nobody.
    """
    if not url:
        return ""
    try:
        # Who finds another at it leaves: that one looks again when it is done, and so sees what was added meanwhile.
        while waiting := due(store, model_name):
            with _alone(store, model_name) as alone:
                box = store.read(_box(model_name), Outbox) or Outbox()
                paused = box.failures and 0 < box.retry_at - now <= LONGEST_PAUSE_S
                if not alone or paused:
                    return ""
                latest = waiting[-1].epoch
                if box.sent >= latest:  # somebody told it since we looked
                    continue
                error = _posted(url, _message(waiting), f"{model_name}/{latest}")
                store.write(_box(model_name), _after_try(box, error, waiting, now))
                if error:
                    return error
        return ""
    except Exception as error:  # boundary: a message is never worth a tick
        return f"nothing was sent: {error}"


def _after_try(box: Outbox, error: str, waiting: Sequence[Notice], now: float) -> Outbox:
    if not error:
        return Outbox(sent=waiting[-1].epoch)
    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(box.failures, 20))
    return Outbox(sent=waiting[0].epoch - 1, failures=box.failures + 1, retry_at=now + pause)


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


def _message(waiting: Sequence[Notice]) -> str:
    lines = [notice.text for notice in waiting[-MOST_LINES:]]
    if left_out := len(waiting) - len(lines):
        lines.insert(0, f"{left_out} earlier ones: pt rollout history")
    # Slack reads <!channel> and links out of a text; a person's reason is to stay what it is.
    return "\n".join(lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A message goes where the operator said, or nowhere."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def _posted(url: str, text: str, key: str) -> str:
    """Why the receiver did not take it, or "". Its address is a secret, so only its host is named."""
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        return "NOTIFY_URL is no address of a web server. Give one that starts with https://."
    result: list[str] = []

    def post() -> None:
        body = json.dumps({"text": text}).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=ANSWERS_WITHIN_S):
                result.append("")
        except urllib.error.HTTPError as error:
            result.append(f"{address.hostname} answered {error.code}")
        except Exception as error:  # boundary: whatever a network does, it is told by its kind alone
            result.append(f"{address.hostname} cannot be reached ({type(error).__name__})")

    # A thread, because a timeout of the socket bounds each read, not a receiver that sends a byte every few seconds.
    sender = threading.Thread(target=post, name="rollout-notice", daemon=True)
    sender.start()
    sender.join(ANSWERS_WITHIN_S)
    return result[0] if result else f"{address.hostname} did not answer within {ANSWERS_WITHIN_S:.0f} s"


@contextmanager
def _alone(store: Store, model_name: str) -> Generator[bool]:
    """Whether nobody else sends for this model; held until the block ends, and dropped with the process."""
    path = store.path(layout.rollout(model_name, "notices.lock"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _box(model_name: str) -> str:
    return layout.rollout(model_name, "notices.json")
