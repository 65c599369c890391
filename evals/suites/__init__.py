"""The suites that a recipe lists. Adding a kind: its section (pipeline/recipe/suites.py), its reader, a line below.

Whoever needs the suites of a recipe asks `suites`: decontamination, erasure, evaluation and the checks before a launch
go over one list, so a suite that is asked is also kept out of training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from evals.suites import custom, embedded, frozen, lines, tasks
from evals.suites.suite import AnswerFormat, Item, Suite
from pipeline.core import layout
from pipeline.core.storage import Record, Store
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import (
    ArithmeticSuite,
    CustomSuite,
    DeskSuite,
    GoldenSuite,
    Gsm8kSuite,
    InspectSuite,
    JsonlSuite,
    LmEvalSuite,
    Math500Suite,
    ProductionSuite,
    SuiteSection,
    TracesSuite,
)

__all__ = ["READERS", "AnswerFormat", "Item", "Suite", "SuitePins", "file_faults", "pin", "suite", "suites"]

READERS: Mapping[type[SuiteSection], Callable[[Any, Store, int], tuple[Item, ...]]] = {
    ArithmeticSuite: embedded.items,
    DeskSuite: embedded.items,
    JsonlSuite: lines.items,
    Gsm8kSuite: lines.items,
    Math500Suite: lines.items,
    ProductionSuite: frozen.items,
    GoldenSuite: frozen.items,
    InspectSuite: tasks.items,
    LmEvalSuite: tasks.items,
    CustomSuite: custom.items,
}
"""Section, store and `evaluation.seed` to items; ValueError with an instruction where there are none to be had."""


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
        if READERS[type(each)] in (lines.items, custom.items):
            try:
                suite(store, each, section.seed)
            except ValueError as error:
                faults.append(f"suite {each.name}: {error}")
    return faults


def suite(store: Store, section: SuiteSection, seed: int) -> Suite:
    items = READERS[type(section)](section, store, seed)
    read = Suite(name=section.name, items=items, system=section.system, instruction=section.instruction)
    return frozen.marked(store, read) if isinstance(section, TracesSuite) else read


def pin(store: Store, folder: str, asked: tuple[Suite, ...]) -> SuitePins:
    """Publish the digests below an iteration's folder; those that are there stand."""
    pins = SuitePins(digests={each.name: each.identity() for each in asked})
    return store.once(f"{folder}/{layout.SUITE_PINS}", SuitePins, lambda: pins)
