"""What a running gateway says of itself: the answer of GET /-/split."""

from __future__ import annotations

from pipeline.core.storage import Record
from pipeline.rollout.gateway.counters import Counts
from pipeline.rollout.router import Split


class SlotReport(Record):
    """One slot and the requests that it is answering."""

    digest: str
    url: str
    name: str
    in_flight: int


class GatewayState(Record):
    """Of the worker that answered; its counts are of all workers."""

    split: Split | None
    """That requests are routed by: the champion alone once the lease has ended."""
    expired: bool
    """Whether the lease has ended: no tick renewed it."""
    refused: str
    """Why the split that was applied last is not in force; "" where it is."""
    slots: tuple[SlotReport, ...]
    slots_fault: str
    """Why the slots cannot be read anew, or which servers are none; "" otherwise."""
    counts: Counts
    pid: int
    """Of the supervisor: SIGHUP to it restarts the workers one by one."""
