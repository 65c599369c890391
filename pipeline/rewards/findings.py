"""The journal of findings: every verdict that cost something, kept so that nobody pays for it twice.

One JSON line a finding, in `rewards/findings/<day of the trace>/` (of live answers: `<rollout>/`), written as soon as
it is known, so a crash loses what was in flight and nothing else. A key is a digest of all that decided the finding:
who judged by what, and what was judged. Labels are composed from findings anew each time; findings are not labels.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from pipeline.core import layout
from pipeline.core.removal import Removal, of_lines
from pipeline.core.storage import Store

Source = Literal["verifier", "judge", "order", "admission", "custom"]


class JournalLine(msgspec.Struct, omit_defaults=True):
    """One finding. `values` and `missing` are by component; `again` marks what another attempt may do better."""

    key: str
    source: Source
    iteration: str
    trace_id: str
    user_id: str | None = None
    values: dict[str, float] = {}
    missing: dict[str, str] = {}
    outcome: str = ""
    answer: str = ""
    tokens: int = 0
    usd: float = 0.0
    again: bool = False


class JudgeSpending(msgspec.Struct):
    """What an iteration's findings have cost so far."""

    tokens: int = 0
    usd: float = 0.0


def key_of(*parts: str) -> str:
    """Digest of these texts in their order; no two different sequences share one."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        content = part.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8))
        digest.update(content)
    return digest.hexdigest()


def known(store: Store, day: str, keys: Collection[str]) -> dict[str, JournalLine]:
    """The findings of these keys. Of several, one that stands is taken before one marked `again`."""
    lines: dict[str, JournalLine] = {}
    for path in _files(store, day):
        for line in _lines(path):
            if line.key in keys and (line.key not in lines or lines[line.key].again):
                lines[line.key] = line
    return lines


def settled(store: Store, account: str | None = None) -> dict[str, JournalLine]:
    """What the paid judges have said, by key: of one folder of the journal, or of all."""
    lines: dict[str, JournalLine] = {}
    for path in sorted(store.path(layout.FINDINGS).glob(f"{account or '*'}/*.jsonl")):
        for line in _lines(path):
            if line.source not in ("verifier", "custom") and (line.key not in lines or lines[line.key].again):
                lines[line.key] = line
    return lines


def spent(store: Store, days: Collection[str], iteration: str, source: str) -> JudgeSpending:
    """What this iteration has paid this source, over all attempts."""
    total = JudgeSpending()
    for day in days:
        for path in _files(store, day):
            for line in _lines(path):
                if line.iteration == iteration and line.source == source:
                    total.tokens += line.tokens
                    total.usd += line.usd
    return total


class FindingJournal:
    """An open file of one day, made with its first line. One writer each; a line is in the file once `add` returns."""

    def __init__(self, store: Store, day: str) -> None:
        self._path = store.path(layout.FINDINGS, day, f"{uuid.uuid4().hex}.jsonl")
        self._stream: BinaryIO | None = None
        self._encoder = msgspec.json.Encoder()

    def add(self, *lines: JournalLine) -> None:
        if self._stream is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._path.open("ab")
        self._stream.write(b"".join(self._encoder.encode(line) + b"\n" for line in lines))
        self._stream.flush()

    def close(self) -> None:
        if self._stream is not None:
            os.fsync(self._stream.fileno())
            self._stream.close()


@contextmanager
def journal(store: Store, day: str) -> Generator[FindingJournal]:
    opened = FindingJournal(store, day)
    try:
        yield opened
    finally:
        opened.close()


def removals(store: Store, users: Collection[str]) -> Iterator[Removal]:
    """The findings on completions of these users, as the governed table names them."""
    decoder = msgspec.json.Decoder(JournalLine)

    def goes(text: bytes) -> bool:
        try:
            return decoder.decode(text).user_id in users
        except msgspec.DecodeError:  # a line that a kill cut off
            return any(b'"user_id":' + msgspec.json.encode(user) in text for user in users)

    for path in sorted(store.path(layout.FINDINGS).glob("*/*.jsonl")):
        yield from of_lines(store, path, goes)


def drop_days(store: Store, days: Collection[str]) -> None:
    """Delete the findings on traces of these days."""
    for day in days:
        shutil.rmtree(store.path(layout.FINDINGS, day), ignore_errors=True)


def _files(store: Store, day: str) -> list[Path]:
    return sorted(store.path(layout.FINDINGS, day).glob("*.jsonl"))


def _lines(path: Path) -> Iterator[JournalLine]:
    """The lines that are whole: a kill may have cut the last one, and that finding is made again."""
    decoder = msgspec.json.Decoder(JournalLine)
    with path.open("rb") as stream:
        for text in stream:
            try:
                yield decoder.decode(text)
            except msgspec.DecodeError:
                continue
