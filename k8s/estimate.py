"""What a launch takes before it is made: hours, device hours and money, each between two ends, and whether a budget
bears it. Prices are the recipe's. Not counted: Dagster's own pods, traffic, the time that a node takes to boot."""

from __future__ import annotations

import math

from k8s.gang import instance
from pipeline.core.storage import Record
from pipeline.recipe import Checkpoints, Compute, Recipe
from pipeline.selection.cost import MethodCost

HOURS_A_MONTH = 730.0
ESTIMATED_FACTOR = 2.0
"""How far the hours that a plan expects may be off, either way."""
COPY_USD_PER_GB_MONTH = 0.023
"""Of an object store, for the copies of `checkpoints.mirror` (seed 002, of S3); counted as large as the volume."""
STEP_S, SAVE_S, START_S, WAIT_S = 48.0, 8.0, 60.0, 240.0
"""Assumed, as nobody has measured them before a launch: a step and a save (seed 000), from a process's start to its
first step, and from the loss of a node to the next start."""
TENTH = 1.2816
"""Standard deviations of the number of interruptions that one course in ten exceeds."""
ENDLESS = 5.0
"""Times of its undisturbed length beyond which a training is said not to end."""


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
    """False: interruptions come so often that the high end is cut at ENDLESS times its undisturbed length."""
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
    (wall_low, held_low), (wall_high, held_high) = (
        stretched(end, checkpoints.interruption_every_s, deviations)
        for end, deviations in ((low, -TENTH), (high, TENTH))
    )
    ends = wall_high <= ENDLESS * high
    wall = Range(low=min(wall_low, ENDLESS * low), high=min(wall_high, ENDLESS * high))
    held = Range(low=devices * min(held_low, wall.low), high=devices * min(held_high, wall.high))
    price, capacity = prices(compute), storage.capacity.replace("_", " ") if storage is not None else "local"
    basis = f"{devices} devices ({capacity}) at {price} USD an hour"
    parts = [CostItem(name="devices", usd=held.times(price), basis=basis)]
    if storage is not None and storage.storage_gb:
        months = Range(low=max(wall.low, kept_hours) / HOURS_A_MONTH, high=max(wall.high, kept_hours) / HOURS_A_MONTH)
        stored = [("volume", storage.storage_usd_per_gb_month)]
        stored += [("copies", COPY_USD_PER_GB_MONTH)] if checkpoints.mirror else []
        for name, each in stored:
            a_month = storage.storage_gb * each
            basis = f"{storage.storage_gb:,.0f} GB at {each:g} USD a GB: {a_month:,.2f} USD a month"
            parts.append(CostItem(name=name, usd=months.times(Range(low=a_month, high=a_month)), basis=basis))
    every_s, usd = checkpoints.interruption_every_s, [part.usd for part in parts]
    often = "for training.checkpoints.interruption_every_s is not set"
    if every_s is not None:
        often = f"one every {every_s:,.0f} s on average, restarts of {START_S + WAIT_S:.0f} s"
    return LaunchEstimate(
        nodes=compute.nodes,
        devices=devices,
        hours=wall,
        device_hours=held,
        usd=Range(low=sum(each.low for each in usd), high=sum(each.high for each in usd)),
        parts=tuple(parts),
        ends=ends,
        basis=f"{Range(low=low, high=high)} hours without interruptions, {often}",
    )


def stretched(hours: float, every_s: float | None, deviations: float = 0.0) -> tuple[float, float]:
    """Hours from the first start to the end, and of those the hours in which nodes are held, of a training that takes
    `hours` undisturbed and is interrupted every `every_s` seconds on average, without notice.

    Daly's expected time (doi:10.1016/j.future.2004.11.016) for saves at Young's interval (doi:10.1145/361147.361115),
    and a Poisson number of interruptions, `deviations` of its standard deviations from the mean. Departures: nobody is
    interrupted while the gang waits for nodes, and an interval is whole steps.
    """
    if every_s is None or hours < 1e-6:
        return hours, hours
    cycle_s = STEP_S * math.ceil(min(math.sqrt(2 * SAVE_S * every_s), every_s) / STEP_S) + SAVE_S
    grown = every_s / cycle_s * math.exp(min(START_S / every_s, 99)) * math.expm1(min(cycle_s / every_s, 99))
    mean = min(hours * 3600 * grown / every_s, 1e18)
    number = max(0.0, mean + deviations * math.sqrt(mean))
    held = hours + number / mean * hours * (grown - 1)
    return held + number * WAIT_S / 3600, held


def expected_hours(expected: MethodCost, timeout_s: float) -> tuple[float, float]:
    """The ends for `estimate_launch` of what the plan expects: no training outlives its time-out."""
    most = timeout_s / 3600
    return min(expected.hours / ESTIMATED_FACTOR, most), min(expected.hours * ESTIMATED_FACTOR, most)


def over_budget(estimate: LaunchEstimate, budget_usd: float | None) -> str:
    """Why the budget forbids the launch; empty if it does not.

    A budget is a promise to whoever pays, so it is held against the high end.
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


def describe(recipe: Recipe) -> str:
    """A table for people. Nobody knows yet how long a training takes: an hour of it, and its time-out, are told.

    Raises ValueError as `estimate_launch` does.
    """
    compute, training = recipe.compute, recipe.training
    undisturbed = training.checkpoints.model_copy(update={"interruption_every_s": None})
    an_hour = estimate_launch(compute, (1.0, 1.0), undisturbed)
    longest = training.timeout_s / 3600
    most = estimate_launch(compute, (longest, longest), undisturbed)
    budget, price = compute.budget_usd, an_hour.usd.high
    lasts = f"{budget / price:,.1f} hours at the higher price" if budget is not None and price else "any time"
    where = compute.kubernetes.instance_type if compute.kubernetes is not None else "the Dagster step's machine"
    rows = [
        ("an hour", f"{an_hour.usd} USD"),
        *((f"  {part.name}", f"{part.usd} USD; {part.basis}") for part in an_hour.parts),
        ("at most", f"{most.usd} USD for an attempt, by training.timeout_s ({longest:g} hours)"),
        ("budget", "none is set (compute.budget_usd)" if budget is None else f"{budget:,.2f} USD: {lasts}"),
    ]
    title = f"{recipe.name}: {compute.nodes} x {where}, {an_hour.devices} x {compute.accelerator.name}"
    return "\n".join([title, *(f"  {name:<14}{text}" for name, text in rows)])
