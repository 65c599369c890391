"""Messages to a webhook that are sent at least once: a mark in the store says what was taken, and records are the rest.

The mark is set after the receiver took the message, so a crash between the two sends it twice, and never not at all.
What piled up goes out as one message, and a receiver that fails is left alone for longer each time. Refuses to know
what is worth a message, to raise, and to hold its caller up for long.
"""

from __future__ import annotations

import fcntl
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pipeline.core.storage import Record, Store

ANSWERS_WITHIN_S = 5.0
MOST_LINES = 10
"""Of one message; of more, the newest."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 15.0, 3600.0


class Notice(NamedTuple):
    """One line of a message. `epoch`: its place among all of them."""

    epoch: int
    text: str


class Outbox(Record):
    """How far the records were told, and when to try again after a failure (seconds since 1970)."""

    sent: int = 0
    """The last epoch of which nothing has to be told any more."""
    failures: int = 0
    retry_at: float = 0.0


class OutboxFolder(NamedTuple):
    """Where a mark lies, below the store's root. `key`: of the messages, so that a receiver knows one that comes again;
    `earlier`: the command that shows what a message left out."""

    folder: str
    key: str
    earlier: str

    @property
    def mark(self) -> str:
        return f"{self.folder}/notices.json"

    def read(self, store: Store) -> Outbox | None:
        return store.read(self.mark, Outbox)


def send(store: Store, box_folder: OutboxFolder, due: Callable[[], Sequence[Notice]], url: str, now: float) -> str:
    """Send what is due, as one message; why that failed, or "". Takes a few seconds at the most, and never raises.

    `url`: takes a POST of `{"text": ...}`, as Slack's incoming webhooks do; "" tells nobody.
    """
    if not url:
        return ""
    try:
        # Who finds another at it leaves: that one looks again when it is done, and so sees what was added meanwhile.
        while waiting := due():
            with _alone(store, box_folder) as alone:
                box = box_folder.read(store) or Outbox()
                if not alone or is_paused(box, now):
                    return ""
                latest = waiting[-1].epoch
                if box.sent >= latest:  # somebody told it since we looked
                    continue
                error = _posted(url, _message(waiting, box_folder.earlier), f"{box_folder.key}/{latest}")
                store.write(box_folder.mark, _after_try(box, error, waiting, now))
                if error:
                    return error
        return ""
    except Exception as error:  # boundary: a message is never worth the work that it is about
        return f"nothing was sent: {error}"


def is_paused(box: Outbox, now: float) -> bool:
    """Whether the receiver failed lately."""
    return bool(box.failures) and 0 < box.retry_at - now <= LONGEST_PAUSE_S


def _after_try(box: Outbox, error: str, waiting: Sequence[Notice], now: float) -> Outbox:
    if not error:
        return Outbox(sent=waiting[-1].epoch)
    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(box.failures, 20))
    return Outbox(sent=waiting[0].epoch - 1, failures=box.failures + 1, retry_at=now + pause)


def _message(waiting: Sequence[Notice], earlier: str) -> str:
    lines = [notice.text for notice in waiting[-MOST_LINES:]]
    if left_out := len(waiting) - len(lines):
        lines.insert(0, f"{left_out} earlier ones: {earlier}")
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
    sender = threading.Thread(target=post, name="notice", daemon=True)
    sender.start()
    sender.join(ANSWERS_WITHIN_S)
    return result[0] if result else f"{address.hostname} did not answer within {ANSWERS_WITHIN_S:.0f} s"


@contextmanager
def _alone(store: Store, box_folder: OutboxFolder) -> Generator[bool]:
    """Whether nobody else sends from this outbox; held until the block ends, and dropped with the process."""
    path = store.path(box_folder.folder, "notices.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
