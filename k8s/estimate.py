"""What a launch would take: hours, device hours and money, each between two ends, and whether a budget bears it.

The rule: hours without interruptions are stretched by simulated ones (simulate.py) at the rate that the recipe expects,
where nobody is told in time: a save at SIGTERM is a bonus. The low end is the luckiest tenth of the schedules on the
shortest hours at the lowest price, the high end the unluckiest tenth on the longest at the highest. Whole nodes are
paid for, while they are held; a volume is paid for while it stands. Owns no price: prices are the recipe's. Not in it:
Dagster's own pods, traffic, the time that a node takes to boot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from k8s.instances import instance
from k8s.simulate import Profile, journal, run, schedule
from pipeline.core.storage import Record
from pipeline.recipe import Checkpoints, Compute, Recipe
from pipeline.selection.cost import MethodCost
from pipeline.training.goodput import account, device_hours

HOURS_A_MONTH = 730.0
ESTIMATED_FACTOR, MEASURED_FACTOR = 2.0, 1.1
"""How far the hours that a plan expects may be off, either way."""
COPY_USD_PER_GB_MONTH = 0.023
"""Of an object store, for the copies of `checkpoints.mirror` (seed 002, of S3); counted as large as the volume."""
SCHEDULES, TENTH = 40, 4
"""Simulated courses of a training, and how many of them are a tenth."""
LONGEST_H, MOST_INTERRUPTIONS = 12.0, 200
"""Simulated at most, the second on average: a longer training is stretched as one of that length is."""
RESTART_S = Profile().start_s + Profile().wait_s
"""Assumed, as seconds of a step and of a save are: before a launch nobody has measured them."""
ENDLESS = 5.0
"""Times of its undisturbed length after which a training is said not to end."""


class Range(Record):
    """Between two ends of what can be expected."""

    low: float
    high: float

    def __str__(self) -> str:
        decimals = 0 if self.high >= 100 else 2
        low, high = f"{self.low:,.{decimals}f}", f"{self.high:,.{decimals}f}"
        return low if low == high else f"{low} to {high}"

    def times(self, other: Range) -> Range:
        return Range(low=self.low * other.low, high=self.high * other.high)


class CostItem(Record):
    """One item of the bill."""

    name: str
    usd: Range
    basis: str


class LaunchEstimate(Record):
    """What one training would take, over all its attempts."""

    nodes: int
    devices: int
    """Paid for: those of whole nodes."""
    hours: Range
    """From the first start to the end, waiting for nodes included."""
    device_hours: Range
    """In which devices are held."""
    usd: Range
    parts: tuple[CostItem, ...]
    """They sum to `usd`."""
    ends: bool
    """False: interruptions come so often that the high end is only where the simulation gave up."""
    basis: str


def estimate_launch(
    compute: Compute, hours: tuple[float, float], checkpoints: Checkpoints, kept_hours: float = 0.0
) -> LaunchEstimate:
    """What a training of `hours` (low, high; without interruptions, starts and saves included) would take.

    `kept_hours`: how long the volume and the copies are paid for on its account, if longer than it runs. Raises
    ValueError for hours that are none and an instance type that is not known.
    """
    low, high = hours
    if not 0 <= low <= high < float("inf"):
        raise ValueError(f"A training cannot take from {low:g} to {high:g} hours. Give two numbers, the lower first.")
    devices, storage = paid_devices(compute), compute.kubernetes
    shortest = _courses(low, checkpoints)
    longest = _courses(high, checkpoints) if high > low else shortest
    wall = Range(low=shortest[TENTH].hours, high=longest[-1 - TENTH].hours)
    held = Range(
        low=devices * sorted(course.held for course in shortest)[TENTH],
        high=devices * sorted(course.held for course in longest)[-1 - TENTH],
    )
    parts = [CostItem(name="devices", usd=held.times(prices(compute)), basis=_prices_text(compute, devices))]
    if storage is not None and storage.storage_gb:
        months = Range(low=max(wall.low, kept_hours) / HOURS_A_MONTH, high=max(wall.high, kept_hours) / HOURS_A_MONTH)
        stored = [("volume", storage.storage_usd_per_gb_month)]
        stored += [("copies", COPY_USD_PER_GB_MONTH)] if checkpoints.mirror else []
        for name, price in stored:
            a_month = storage.storage_gb * price
            basis = f"{storage.storage_gb:,.0f} GB at {price:g} USD a GB: {a_month:,.2f} USD a month"
            parts.append(CostItem(name=name, usd=months.times(Range(low=a_month, high=a_month)), basis=basis))
    return LaunchEstimate(
        nodes=compute.nodes,
        devices=devices,
        hours=wall,
        device_hours=held,
        usd=Range(low=sum(part.usd.low for part in parts), high=sum(part.usd.high for part in parts)),
        parts=tuple(parts),
        ends=longest[-1 - TENTH].ends,
        basis=_interruptions_text(Range(low=low, high=high), checkpoints),
    )


def expected_hours(expected: MethodCost, timeout_s: float) -> tuple[float, float]:
    """The ends for `estimate_launch` of what the plan expects: no training outlives its time-out."""
    most, factor = timeout_s / 3600, MEASURED_FACTOR if expected.measured else ESTIMATED_FACTOR
    return min(expected.hours / factor, most), min(expected.hours * factor, most)


def over_budget(estimate: LaunchEstimate, budget_usd: float | None) -> str:
    """Why the budget forbids the launch; empty if it does not.

    A budget is a promise to whoever pays, so it is held against the high end: on the low end the promise would be kept
    only with luck. What is refused can be launched by whoever may raise the budget, a bill can't be taken back.
    """
    high = round(estimate.usd.high, 2)
    if budget_usd is None or (estimate.ends and high <= budget_usd):
        return ""
    if not estimate.ends:
        return (
            f"No budget bears a training that does not end: {estimate.basis}. Ask for capacity that is interrupted "
            "less often (compute.kubernetes.capacity), or correct training.checkpoints.interruption_every_s."
        )
    return (
        f"The training may take {estimate.usd} USD ({estimate.devices} devices, {estimate.hours} hours), and "
        f"compute.budget_usd is {budget_usd:,.2f}. Raise it to {math.ceil(high):,}, or train fewer steps."
    )


def prices(compute: Compute) -> Range:
    """USD an hour of one device, by the capacity that the recipe asks for."""
    first = compute.accelerator.usd_per_hour
    if compute.kubernetes is None or compute.kubernetes.capacity == "spot":
        return Range(low=first, high=first)
    fallback = compute.kubernetes.on_demand_usd_per_hour or first
    if compute.kubernetes.capacity == "on_demand":
        return Range(low=fallback, high=fallback)
    return Range(low=min(first, fallback), high=max(first, fallback))


def paid_devices(compute: Compute) -> int:
    """Devices of the nodes that the training takes whole. Raises ValueError for an unknown instance type."""
    on_node = instance(compute.kubernetes.instance_type).gpus if compute.kubernetes is not None else 0
    return compute.nodes * max(compute.processes, on_node)


def describe(recipe: Recipe, hours: tuple[float, float] | None = None) -> str:
    """A table for people. Without `hours` (low, high) nobody knows how long: an hour of it, and its time-out, are told.

    Raises ValueError as `estimate_launch` does.
    """
    compute, training = recipe.compute, recipe.training
    undisturbed = training.checkpoints.model_copy(update={"interruption_every_s": None})
    an_hour = estimate_launch(compute, (1.0, 1.0), undisturbed)
    where = compute.kubernetes.instance_type if compute.kubernetes is not None else "the Dagster step's machine"
    rows = [("an hour", f"{an_hour.usd} USD")]
    rows += [(f"  {part.name}", f"{part.usd} USD; {part.basis}") for part in an_hour.parts]
    longest = training.timeout_s / 3600
    if hours is None:
        most = estimate_launch(compute, (longest, longest), undisturbed)
        rows.append(("at most", f"{most.usd} USD for an attempt, by training.timeout_s ({longest:g} hours)"))
    else:
        most = estimate_launch(compute, hours, training.checkpoints)
        rows += [
            ("hours", f"{most.hours}; {most.basis}"),
            ("device hours", f"{most.device_hours}"),
            ("the training", f"{most.usd} USD"),
        ]
        rows += [(f"  {part.name}", f"{part.usd} USD") for part in most.parts]
    rows.append(("budget", _budget_text(compute, most, an_hour, hours is None)))
    title = f"{recipe.name}: {compute.nodes} x {where}, {an_hour.devices} x {compute.accelerator.name}"
    return "\n".join([title, *(f"  {name:<14}{text}" for name, text in rows)])


class _Course(NamedTuple):
    """One simulated training: hours from the first start, and of those the hours in which its nodes were held."""

    hours: float
    held: float
    ends: bool


def _courses(hours: float, checkpoints: Checkpoints) -> Sequence[_Course]:
    """SCHEDULES of them, the shortest first."""
    every_s = checkpoints.interruption_every_s
    if every_s is None or hours == 0:
        return [_Course(hours, hours, True)] * SCHEDULES
    work_s = min(hours * 3600, LONGEST_H * 3600, MOST_INTERRUPTIONS * every_s)
    profile = Profile(work_s=work_s, notice_s=0.0, checkpoints=checkpoints)
    whole_s = run(profile, ()).total_s
    until_s = ENDLESS * whole_s
    courses: list[_Course] = []
    for seed in range(SCHEDULES):
        events = journal(profile, schedule(every_s, 1, until_s, seed), until_s)
        spent = account(events)
        stretch, held = spent.total_s / whole_s, device_hours(spent, 1) * 3600 / whole_s
        courses.append(_Course(hours * stretch, hours * held, events[-1].kind == "ended"))
    return sorted(courses)


def _prices_text(compute: Compute, devices: int) -> str:
    capacity = compute.kubernetes.capacity.replace("_", " ") if compute.kubernetes is not None else "local"
    return f"{devices} devices ({capacity}) at {prices(compute)} USD an hour"


def _interruptions_text(hours: Range, checkpoints: Checkpoints) -> str:
    every_s = checkpoints.interruption_every_s
    if every_s is None:
        return f"{hours} hours without interruptions, for training.checkpoints.interruption_every_s is not set"
    return f"{hours} hours without interruptions; one every {every_s:,.0f} s on average, restarts of {RESTART_S:.0f} s"


def _budget_text(compute: Compute, most: LaunchEstimate, an_hour: LaunchEstimate, unknown: bool) -> str:
    budget = compute.budget_usd
    if budget is None:
        return "none is set (compute.budget_usd)"
    if unknown:
        lasts = f"{budget / an_hour.usd.high:,.1f} hours at the higher price" if an_hour.usd.high else "any time"
        return f"{budget:,.2f} USD: {lasts}"
    return over_budget(most, budget) or f"{budget:,.2f} USD covers it"
