"""What a launch takes before it is made: hours, device hours and money, each between two ends, and whether a budget
bears it. Prices are the recipe's. Not counted: Dagster's own pods, traffic, the time that a node takes to boot."""

from __future__ import annotations

import math

from k8s.gang import instance
from k8s.hours import WAIT_S, Range, model_hours, recipe_hours, stretched
from pipeline.core.storage import Record
from pipeline.recipe import Checkpoints, Compute, Recipe

HOURS_A_MONTH = 730.0
BUCKET_USD_PER_GB_MONTH = 0.023
"""Of an object store (seed 002, of S3)."""
TENTH = 1.2816
"""Standard deviations of the number of interruptions that one course in ten exceeds."""
ENDLESS = 5.0
"""Times of its undisturbed length beyond which a training is said not to end."""


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


def estimate_launch(compute: Compute, hours: tuple[float, float], checkpoints: Checkpoints) -> LaunchEstimate:
    """What a training of `hours` (low, high; without interruptions, start and saves included) would take. Raises
    ValueError for hours that are none and an instance type that is not known."""
    low, high = hours
    if not 0 <= low <= high < float("inf"):
        raise ValueError(f"A training cannot take from {low:g} to {high:g} hours. Give two numbers, the lower first.")
    devices, storage = paid_devices(compute), compute.kubernetes
    (wall_low, held_low), (wall_high, held_high) = (
        stretched(end, checkpoints.interruption_every_s, deviations, compute.expected)
        for end, deviations in ((low, -TENTH), (high, TENTH))
    )
    ends = wall_high <= ENDLESS * high
    wall = Range(low=min(wall_low, ENDLESS * low), high=min(wall_high, ENDLESS * high))
    held = Range(low=devices * min(held_low, wall.low), high=devices * min(held_high, wall.high))
    price, capacity = prices(compute), storage.capacity.replace("_", " ") if storage is not None else "local"
    basis = f"{devices} devices ({capacity}) at {price} USD an hour (compute.accelerator)"
    parts = [CostItem(name="devices", usd=held.times(price), basis=basis)]
    if storage is not None and storage.storage_gb:
        kept = Range(low=max(wall.low, storage.storage_hours), high=max(wall.high, storage.storage_hours))
        an_hour = storage.storage_gb * storage.storage_usd_per_gb_month / HOURS_A_MONTH
        price = f"{storage.storage_usd_per_gb_month:g} USD a GB-month"
        basis = f"{storage.storage_gb:,.0f} GB at {price} for {kept} hours (compute.kubernetes)"
        parts.append(CostItem(name="volume", usd=kept.times(Range(low=an_hour, high=an_hour)), basis=basis))
    if storage is not None and storage.bucket_gb:
        usd = storage.bucket_gb * BUCKET_USD_PER_GB_MONTH
        basis = f"{storage.bucket_gb:,.0f} GB at {BUCKET_USD_PER_GB_MONTH} USD for a month (compute.kubernetes)"
        parts.append(CostItem(name="bucket", usd=Range(low=usd, high=usd), basis=basis))
    every_s, usd = checkpoints.interruption_every_s, [part.usd for part in parts]
    often = "for training.checkpoints.interruption_every_s is not set"
    if every_s is not None:
        often = f"one every {every_s:,.0f} s on average, restarts of {compute.expected.start_s[1] + WAIT_S:.0f} s"
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
        f"compute.budget_usd is {budget_usd:,.2f}. Raise it to {math.ceil(high)}, or train fewer steps."
    )


def prices(compute: Compute) -> Range:
    """USD an hour of one device, by the capacity that the recipe asks for."""
    named = compute.accelerator
    first = Range(low=named.usd_per_hour, high=max(named.usd_per_hour, named.usd_per_hour_high))
    if compute.kubernetes is None or compute.kubernetes.capacity == "spot":
        return first
    if not (fallback := compute.kubernetes.on_demand_usd_per_hour):
        return first
    if compute.kubernetes.capacity == "on_demand":
        return Range(low=fallback, high=fallback)
    return Range(low=min(first.low, fallback), high=max(first.high, fallback))


def paid_devices(compute: Compute) -> int:
    """Devices of the nodes that the training takes whole. Raises ValueError for an unknown instance type."""
    on_node = instance(compute.kubernetes.instance_type).gpus if compute.kubernetes is not None else 0
    return compute.nodes * max(compute.processes, on_node)


def describe(recipe: Recipe, measured: tuple[float, float] | None = None) -> str:
    """A table for people: hours and dollars of an iteration's training and of a year, each with where it comes from.
    `measured`: hours of a whole training, low and high, that somebody knows better.

    Raises ValueError as `estimate_launch` does.
    """
    compute, checkpoints = recipe.compute, recipe.training.checkpoints
    modelled = model_hours(recipe)
    hours, basis = recipe_hours(recipe, modelled)
    if measured is not None:
        hours, basis = Range.model_construct(low=measured[0], high=measured[1]), "--hours, start and saves in them"
    ends = hours.low, hours.high
    calm = estimate_launch(compute, ends, checkpoints.model_copy(update={"interruption_every_s": None}))
    total = estimate_launch(compute, ends, checkpoints)
    minutes = f" ({Range(low=60 * hours.low, high=60 * hours.high)} min)" if hours.high < 3 else ""
    each_year = compute.expected.iterations_per_year
    year = Range(low=each_year * total.usd.low, high=each_year * total.usd.high)
    interrupted = [("interrupted", f"{total.usd} USD, {total.hours} hours; {total.basis}")] * (total != calm)
    where = compute.kubernetes.instance_type if compute.kubernetes is not None else "the Dagster step's machine"
    rows = [
        ("hours", f"{hours}{minutes}; {basis}"),
        ("cost model", modelled.basis),
        *((part.name, f"{part.usd} USD; {part.basis}") for part in calm.parts),
        ("an iteration", f"{calm.usd} USD, {calm.device_hours} device hours"),
        *interrupted,
        ("a year", f"{year} USD for {each_year} iterations (compute.expected.iterations_per_year)"),
        ("at most", f"{recipe.training.timeout_s / 3600:g} hours an attempt (training.timeout_s)"),
        ("budget", _budget(total, compute.budget_usd)),
    ]
    title = f"{recipe.name}: {compute.nodes} x {where}, {calm.devices} x {compute.accelerator.name}"
    return "\n".join([title, *(f"  {name:<14}{text}" for name, text in rows)])


def _budget(estimate: LaunchEstimate, budget_usd: float | None) -> str:
    if budget_usd is None:
        return "none is set (compute.budget_usd)"
    return over_budget(estimate, budget_usd) or f"{budget_usd:,.2f} USD bears it (compute.budget_usd)"
