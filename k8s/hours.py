"""How long a training will take: by what was measured, else by the cost model; and with interruptions."""

from __future__ import annotations

import math
from typing import NamedTuple

from pipeline.core.storage import Record
from pipeline.recipe import Recipe
from pipeline.recipe.compute import Expected
from pipeline.recipe.methods import AnyMethod
from pipeline.selection.cost import device_hours_of, parameters
from pipeline.training.launch import possible_methods

ESTIMATED_FACTOR = 2.0
"""How far the hours that a plan expects may be off, either way."""
STEP_S, WAIT_S = 48.0, 240.0
"""Assumed: a step where none is measured (seed 000), and from the loss of a node to the next start."""


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


class ExpectedHours(NamedTuple):
    """Of a training without interruptions, start and saves included. `basis`: where they come from."""

    hours: Range
    basis: str


def expected_hours(recipe: Recipe, method: AnyMethod, modelled: float | None) -> ExpectedHours:
    """By the seconds of a step that the recipe has, else by the cost model's hours. No training outlives its time-out,
    which is the high end where neither is known."""
    expected, most = recipe.compute.expected, recipe.training.timeout_s / 3600
    saves = method.steps // recipe.training.checkpoints.every_steps
    if expected.step_s is not None:
        batches = method.batches_in(method.steps)
        low, high = (batches * each / 3600 for each in expected.step_s)
        basis = f"{batches:,} steps of {_seconds(expected.step_s)} (compute.expected.step_s)"
    elif modelled is not None:
        low, high = modelled / ESTIMATED_FACTOR, modelled * ESTIMATED_FACTOR
        basis = f"{modelled:,.2f} hours by the cost model for {method.steps:,} steps, a factor of {ESTIMATED_FACTOR:g}"
    else:
        why = "nothing is known of it: set compute.expected.step_s or parameters_b, or type --hours LOW HIGH"
        return ExpectedHours(Range(low=0, high=most), why)
    low += (saves * expected.save_s + expected.start_s[0]) / 3600
    high += (saves * expected.save_s + expected.start_s[1]) / 3600
    basis += f", start-up {_seconds(expected.start_s)}, {saves} saves of {expected.save_s:g} s (compute.expected)"
    return ExpectedHours(Range(low=min(low, most), high=min(high, most)), f"{method.title}: {basis}")


def _seconds(ends: tuple[float, float]) -> str:
    return f"{ends[0]:g} s" if ends[0] == ends[1] else f"{ends[0]:g} to {ends[1]:g} s"


class ModelHours(NamedTuple):
    """The cost model's hours for each method that may be trained, and what they were computed from; none where the
    model's size is not known."""

    hours: dict[str, float]
    basis: str


def model_hours(recipe: Recipe) -> ModelHours:
    expected, compute, device = recipe.compute.expected, recipe.compute, recipe.compute.accelerator
    weights, source = parameters(recipe.base_model.uri), "the model's folder"
    if weights is None:
        if expected.parameters_b is None:
            return ModelHours({}, f"unknown: {recipe.base_model.uri} is not here, nor compute.expected.parameters_b")
        weights, source = round(expected.parameters_b * 1e9), "compute.expected.parameters_b"
    hours = {
        each.kind: device_hours_of(each.flops(expected.prompt_tokens, expected.completion_tokens), weights, device)
        / compute.devices
        for each in possible_methods(recipe)
    }
    shown = ", ".join(f"{kind.upper()} {each:,.2f}" for kind, each in hours.items())
    tokens = ", ".join(
        f"{name.partition('_')[0]}s of {getattr(expected, name)} tokens "
        f"({f'compute.expected.{name}' if name in expected.model_fields_set else 'default'})"
        for name in ("prompt_tokens", "completion_tokens")
    )
    return ModelHours(
        hours,
        f"{shown} hours: {weights / 1e9:,.4g} billion weights ({source}), {tokens}, {compute.devices} x "
        f"{device.utilisation:.0%} of {device.peak_tflops:g} TFLOPS (compute.accelerator)",
    )


def recipe_hours(recipe: Recipe, modelled: ModelHours) -> ExpectedHours:
    """Over the methods that the recipe may choose."""
    each = [expected_hours(recipe, method, modelled.hours.get(method.kind)) for method in possible_methods(recipe)]
    ends = Range(low=min(of.hours.low for of in each), high=max(of.hours.high for of in each))
    return ExpectedHours(ends, "; ".join(dict.fromkeys(of.basis for of in each)))


def stretched(hours: float, every_s: float | None, deviations: float, expected: Expected) -> tuple[float, float]:
    """Hours from the first start to the end, and of those the hours in which nodes are held, of a training that takes
    `hours` undisturbed and is interrupted every `every_s` seconds on average, without notice.

    Daly's expected time (doi:10.1016/j.future.2004.11.016) for saves at Young's interval (doi:10.1145/361147.361115),
    and a Poisson number of interruptions, `deviations` of its standard deviations from the mean. Departures: nobody is
    interrupted while the gang waits for nodes, and an interval is whole steps.
    """
    if every_s is None or hours < 1e-6:
        return hours, hours
    save_s, start_s = max(expected.save_s, 1), expected.start_s[1]
    step_s = expected.step_s[1] if expected.step_s is not None else STEP_S
    cycle_s = step_s * math.ceil(min(math.sqrt(2 * save_s * every_s), every_s) / step_s) + save_s
    grown = every_s / cycle_s * math.exp(min(start_s / every_s, 99)) * math.expm1(min(cycle_s / every_s, 99))
    mean = min(hours * 3600 * grown / every_s, 1e18)
    number = max(0.0, mean + deviations * math.sqrt(mean))
    held = hours + number / mean * hours * (grown - 1)
    return held + number * WAIT_S / 3600, held
