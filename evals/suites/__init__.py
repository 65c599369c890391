"""Reads the suites that a recipe lists. Decontamination, erasure, evaluation and the checks before a launch all use
`suites`, so a suite that is asked is also kept out of training."""

from evals.suites import frozen, lines
from evals.suites.suite import Item, Suite
from pipeline.core import layout
from pipeline.core.storage import Record, Store
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import ItemsSuite, SuiteSection

__all__ = [
    "Item",
    "Suite",
    "SuitePins",
    "file_faults",
    "pin",
    "suite",
    "suites",
]


class SuitePins(Record):
    """Identity of each suite by its name, as training data was cleaned of it: the gate asks these and no others."""

    digests: dict[str, str]


def suites(store: Store, section: Evaluation) -> tuple[Suite, ...]:
    """The suites with items, in the recipe's order. Raises ValueError for the first that cannot be read."""
    return tuple(suite(store, each, section.seed) for each in section.asked)


def file_faults(store: Store, section: Evaluation) -> list[str]:
    """Why suites of files and of custom code cannot be read, a line each. A launch asks before it begins: the stage
    that needs them comes after the labels, which may have been paid for."""
    faults: list[str] = []
    for each in section.asked:
        if isinstance(each, ItemsSuite) and not each.embedded:
            try:
                suite(store, each, section.seed)
            except ValueError as error:
                faults.append(f"suite {each.name}: {error}")
    return faults


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


def pin(store: Store, folder: str, asked: tuple[Suite, ...]) -> SuitePins:
    """Publish the digests below an iteration's folder; those that are there stand."""
    pins = SuitePins(digests={each.name: each.identity() for each in asked})
    return store.once(f"{folder}/{layout.SUITE_PINS}", SuitePins, lambda: pins)
