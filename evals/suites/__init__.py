"""Reads the suites that a recipe lists. Decontamination, erasure, evaluation and the checks before a launch all use
`suites`, so a suite that is asked is also kept out of training."""

from collections.abc import Collection, Mapping

from pydantic import Field

from evals.suites import frozen, lines
from evals.suites.suite import Item, Suite
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Record, Store
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import ItemsSuite, SuiteSection

__all__ = [
    "Item",
    "Suite",
    "SuitePins",
    "asked_by",
    "not_asked",
    "pin",
    "suite",
    "suites",
]


class SuitePins(Record):
    """Identity of each suite by its name, as training data was cleaned of it: the gate asks these and no others."""

    digests: dict[str, str]
    not_asked: dict[str, str] = Field(default={})
    """Why a suite that only reports could not be frozen: the iteration does not ask it."""


def suites(store: Store, section: Evaluation, without: Collection[str] = ()) -> tuple[Suite, ...]:
    """The suites with items but for those named in `without`, in the recipe's order. Raises ValueError for the first
    that cannot be read."""
    return tuple(suite(store, each, section.seed) for each in section.asked if each.name not in without)


def asked_by(store: Store, section: Evaluation, iteration: Iteration) -> tuple[Suite, ...]:
    """The suites that an iteration asks. Raises ValueError as `suites`."""
    return suites(store, section, not_asked(store, iteration))


def suite(store: Store, section: SuiteSection, seed: int) -> Suite:
    """Raises ValueError with an instruction where its items cannot be had."""
    if isinstance(section, ItemsSuite):
        items, generation = lines.items(section, store, seed), ""
    else:
        items, generation = frozen.items(section, store)
    return Suite(
        name=section.name,
        items=items,
        system=section.system,
        instruction=section.instruction,
        generation=generation,
    )


def pin(store: Store, folder: str, asked: tuple[Suite, ...], left_out: Mapping[str, str] | None = None) -> SuitePins:
    """Publish the digests below an iteration's folder, and the reasons of `not_asked`; pins that are there stand."""
    pins = SuitePins(digests={each.name: each.identity() for each in asked}, not_asked=dict(left_out or {}))
    return store.once(f"{folder}/{layout.SUITE_PINS}", SuitePins, lambda: pins)


def not_asked(store: Store, iteration: Iteration) -> dict[str, str]:
    """The suites that an iteration does not ask, with the reasons; none before its suites are pinned."""
    pins = store.read(iteration.path(layout.SUITE_PINS), SuitePins)
    return pins.not_asked if pins is not None else {}
