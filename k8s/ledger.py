"""What a launch took, after it: attempts, interruptions, lost work, goodput and money, by the trainer's own account or,
where a training left none, by what the launcher saw: from an attempt's opening to its end, waiting included."""

from __future__ import annotations

from collections.abc import Sequence

from k8s.estimate import Range, prices
from pipeline.core.storage import Record
from pipeline.recipe import Compute
from pipeline.training.goodput import device_hours
from pipeline.training.result import CAUSES, TrainingResult


class LaunchAttempt(Record):
    """One object in the cluster, from the launcher's side."""

    attempt: int
    name: str
    opened_at: float
    """Seconds since the epoch, as `closed_at`."""
    closed_at: float | None = None
    """None while it is not over."""
    outcome: str = ""
    why: str = ""
    restarts: int = 0
    """Of the gang inside this attempt."""
    requests: int = 0
    """Calls to the API server."""


class Ledger(Record):
    attempts: int
    restarts: int
    """Of gangs, inside the attempts."""
    requests: int
    hours: float
    """In which an attempt was open."""
    preemptions: int
    """Interruptions that the trainer resumed from, whatever their cause."""
    lost_steps: int
    """Computed again."""
    goodput: float
    """Share of the training's time that went into steps of the final weights."""
    productive_s: float
    badput_s: dict[str, float]
    """By cause."""
    devices: int
    """Paid for, over all nodes."""
    device_hours: float
    usd: Range
    """Of the devices, at the lower and the higher price of the capacity that was asked for."""
    budget_share: float | None
    """Of `compute.budget_usd`, at the higher price; None without a budget."""
    measured: bool
    """False: the training left no account, and `device_hours` is the attempts' whole time."""


def ledger(attempts: Sequence[LaunchAttempt], result: TrainingResult | None, compute: Compute, devices: int) -> Ledger:
    """The account of these attempts at one training; `result` is None for a training that did not end.

    `devices`: paid for (`k8s.estimate.paid_devices`), over all nodes.
    """
    open_s = sum(max(0.0, each.closed_at - each.opened_at) for each in attempts if each.closed_at is not None)
    goodput = result.goodput if result is not None and result.goodput.total_s > 0 else None
    preemptions = result.preemptions if result is not None else ()
    held = device_hours(goodput, devices) if goodput is not None else devices * open_s / 3600
    usd = prices(compute).times(Range(low=held, high=held))
    return Ledger(
        attempts=len(attempts),
        restarts=sum(each.restarts for each in attempts),
        requests=sum(each.requests for each in attempts),
        hours=open_s / 3600,
        preemptions=len(preemptions),
        lost_steps=sum(each.lost_steps for each in preemptions),
        goodput=goodput.share if goodput is not None else 0.0,
        productive_s=goodput.productive_s if goodput is not None else 0.0,
        badput_s=goodput.badput_s if goodput is not None else dict.fromkeys(CAUSES, 0.0),
        devices=devices,
        device_hours=held,
        usd=usd,
        budget_share=usd.high / compute.budget_usd if compute.budget_usd is not None else None,
        measured=goodput is not None,
    )
