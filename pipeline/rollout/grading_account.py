"""What judges were paid for grades of live answers: a line for each time that they were asked, in the rollout's folder.

Owns the file. A line names the rollout and holds counts alone. Of a process that is killed, what it was just asking for
is lost.
"""

from __future__ import annotations

import os

import msgspec

from pipeline import layout
from pipeline.rewards.findings import JudgeSpending
from pipeline.storage import Store


class GradesPaid(msgspec.Struct):
    """One line."""

    rollout: str
    tokens: int
    usd: float


def pay(store: Store, model_name: str, line: GradesPaid) -> None:
    """Keep a line; it is in the file once this returns."""
    path = store.path(layout.grades_paid(model_name))
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, msgspec.json.encode(line) + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def paid(store: Store, model_name: str) -> dict[str, JudgeSpending]:
    """By rollout. A line that a kill cut off is nothing."""
    spending: dict[str, JudgeSpending] = {}
    path = store.path(layout.grades_paid(model_name))
    for text in path.read_bytes().splitlines() if path.exists() else ():
        try:
            line = msgspec.json.decode(text, type=GradesPaid)
        except msgspec.DecodeError:
            continue
        total = spending.setdefault(line.rollout, JudgeSpending())
        total.tokens += line.tokens
        total.usd += line.usd
    return spending
