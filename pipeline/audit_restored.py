"""A log that was restored from a backup, and a person's word that this is known.

The anchors of the lines that the backup did not have disagree with the log for good. An entry `restored` names them,
one by one, and is signed with a key that stands in a file outside the data root; they count no more, and the entry is
shown by every `verify`. Owns what is signed and whether it holds. Refuses to excuse anything that is not named
in it: a line that is changed later, another tampering and an entry without a good signature disagree as before.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pipeline import audit
from pipeline.audit_anchors import Anchor
from pipeline.signatures import signer
from pipeline.storage import Record, Store, digest_json

RESTORED = "restored"


class LostHead(NamedTuple):
    """An anchored head that the log does not have."""

    log: str
    n: int
    digest: str


class Restore(Record):
    """`detail` of an entry `restored`. `line` and `digest` name a line of the log as it was restored, which has to
    stand before the entry; `lost` what was anchored and is gone."""

    log: str
    line: int
    digest: str
    lost: tuple[LostHead, ...]
    reason: str
    by: str = ""
    signature: str = ""

    def signed_line(self) -> str:
        """What is signed, to the byte: one line with its end."""
        lost = digest_json(self.lost)
        return (
            f"accept restored log {self.log} with line {self.line} {self.digest} without {len(self.lost)} heads "
            f"{lost} because {json.dumps(self.reason, ensure_ascii=False)}\n"
        )

    def gap(self) -> str:
        """Which lines are lost, as far as the anchors tell, for a person."""
        newest = max(each.n for each in self.lost)
        others = len({each.log for each in self.lost} - {self.log})
        before = f", and {others} other logs that stood here" if others else ""
        return f"what was noted as lines up to {newest} by {len(self.lost)} anchors{before}"


class Accepted(NamedTuple):
    """`restores`: those with a good signature, each with the number and time of its entry; `flaws`: of the others."""

    restores: list[tuple[int, str, Restore]]
    flaws: list[str]

    def lost(self) -> frozenset[LostHead]:
        return frozenset(head for _, _, restore in self.restores for head in restore.lost)

    def lines(self) -> Iterator[str]:
        """For a person, for ever."""
        for n, at, restore in self.restores:
            yield (
                f"Line {n}: {restore.by} accepted on {at[:10]} that this log was restored and lacks {restore.gap()}. "
                f"Reason: {restore.reason}"
            )


def head_of(anchor: Anchor) -> LostHead:
    return LostHead(anchor.log, anchor.n, anchor.digest)


def missing_heads(store: Store, log: str, anchors: Collection[Anchor]) -> tuple[LostHead, ...]:
    """The anchored heads that the log, of that identity, does not have, in order."""
    digests = {entry.n: entry.digest for entry in audit.entries(store)}
    lost = {head_of(each) for each in anchors if each.log != log or digests.get(each.n) != each.digest}
    return tuple(sorted(lost))


def accepted(store: Store, log: str, signers: Path | None) -> Accepted:
    """The restores that the log speaks of. Read it after its chain was verified.

    `signers`: names and public keys of who may accept one; None where the deployment names nobody.
    """
    restores: list[tuple[int, str, Restore]] = []
    flaws: list[str] = []
    digests: dict[int, str] = {}
    for entry in audit.entries(store):
        if entry.kind == RESTORED:
            try:
                restores.append((entry.n, entry.at, _checked(entry, log, digests, signers)))
            except ValueError as error:
                flaws.append(f"line {entry.n} accepts that the log was restored, and is not to be believed: {error}")
        digests[entry.n] = entry.digest
    return Accepted(restores, flaws)


def _checked(entry: audit.Entry, log: str, digests: Mapping[int, str], signers: Path | None) -> Restore:
    restore = Restore.model_validate(entry.detail)
    if restore.log != log or digests.get(restore.line) != restore.digest:
        raise ValueError(f"it is about line {restore.line} of a log that is not this one")
    if signers is None:
        raise ValueError("nobody is named who may sign it. Set AUDIT_SIGNERS to the file of names and keys")
    by = signer(restore.signature, restore.signed_line(), signers, datetime.fromisoformat(entry.at)).by
    if by != restore.by:
        raise ValueError(f"{by} signed it, and it names {restore.by}")
    return restore


def excused(anchors: Sequence[Anchor], lost: Collection[LostHead]) -> list[Anchor]:
    """The anchors that still count."""
    return [each for each in anchors if head_of(each) not in lost]
