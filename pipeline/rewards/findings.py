"""The journal of findings: every verdict that cost something, kept so that it is not paid for twice. In
`rewards/findings/<day of the trace>/` (of live answers: `<rollout>/`), a file for each writer."""

import hashlib
import json
import shutil
import uuid
from collections.abc import Collection, Iterator
from typing import Literal

import msgspec

from pipeline.core import layout
from pipeline.core.journal import Journal, JournalEntry, forget, latest, read
from pipeline.core.removal import Removal
from pipeline.core.storage import Store

Source = Literal["verifier", "judge", "admission", "custom"]


class FindingLine(JournalEntry, kw_only=True, omit_defaults=True):
    """One finding; its owner is the user of the trace. A judge's or a function's has a value, or the reason why there
    is none; a verifier's an outcome."""

    source: Source
    account: str
    """The iteration, a stage of it or the rollout that paid for it."""
    trace_id: str = ""
    value: float | None = None
    reason: str = ""
    outcome: str = ""
    answer: str = ""
    tokens: int = 0
    usd: float = 0.0


class JudgeSpending(msgspec.Struct):
    """What an account's findings have cost so far."""

    tokens: int = 0
    usd: float = 0.0


def key_of(*parts: str) -> str:
    """Digest of these texts in their order; no two different sequences share one."""
    text = json.dumps(parts, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def known(store: Store, day: str, keys: Collection[str]) -> dict[str, FindingLine]:
    """The findings of these keys. Of several, one that stands is taken before one marked `again`."""
    return latest(line for line in _lines(store, day) if line.key in keys)


def settled(store: Store, day: str = "*") -> dict[str, FindingLine]:
    """What the paid judges have said, by key: of one folder of the journal, or of all."""
    return latest(line for line in _lines(store, day) if line.source not in ("verifier", "custom"))


def spent(store: Store, account: str, day: str = "*") -> JudgeSpending:
    """What this account has paid, over all attempts."""
    paid = [line for line in _lines(store, day) if line.account == account]
    return JudgeSpending(sum(line.tokens for line in paid), sum(line.usd for line in paid))


def journal(store: Store, day: str) -> Journal[FindingLine]:
    """A new file of one day, made with its first line; an erasure may rewrite it between two lines."""
    return Journal(store.path(layout.FINDINGS, day, f"{uuid.uuid4().hex}.jsonl"), FindingLine)


def removals(store: Store, users: Collection[str]) -> Iterator[Removal]:
    """The findings on completions of these users, as the governed table names them."""
    return forget(store, store.path(layout.FINDINGS).glob("*/*.jsonl"), users)


def drop_days(store: Store, days: Collection[str]) -> None:
    """Delete the findings on traces of these days."""
    for day in days:
        shutil.rmtree(store.path(layout.FINDINGS, day), ignore_errors=True)


def _lines(store: Store, day: str) -> Iterator[FindingLine]:
    for path in sorted(store.path(layout.FINDINGS).glob(f"{day}/*.jsonl")):
        yield from read(path, FindingLine)
