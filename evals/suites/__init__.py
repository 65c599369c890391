"""Reads the suites that a recipe lists. Decontamination, erasure, evaluation and the checks before a launch all use
`suites`, so a suite that is asked is also kept out of training."""

import hashlib
from pathlib import Path

from evals.suites import frozen, lines
from evals.suites.suite import AnswerFormat, Item, Suite
from pipeline.core import layout
from pipeline.core.storage import Record, Store, digest_json
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import ItemsSuite, LmEvalSuite, SuiteSection, TracesSuite

__all__ = [
    "AnswerFormat",
    "Item",
    "Suite",
    "SuitePins",
    "file_faults",
    "pin",
    "suite",
    "suites",
    "task_digest",
    "task_list",
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
    generation = ""
    match section:
        case ItemsSuite():
            items = lines.items(section, store, seed)
        case TracesSuite():
            items, generation = frozen.items(section, store)
        case _:
            items = _listed(section, store, seed)
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


def _listed(section: LmEvalSuite, store: Store, seed: int) -> tuple[Item, ...]:
    """The task's items as lm-evaluation-harness listed them (evals/harness.py)."""
    path = task_list(section, store)
    if not path.is_file():
        raise ValueError(
            f"The items of the suite {section.name} are not listed yet: {path}. Set LM_EVAL_PYTHON, and list them: "
            "pt evals list RECIPE"
        )
    return lines.drawn(lines.parse_embedded(path.read_bytes()), section.items, seed)


def task_list(section: LmEvalSuite, store: Store) -> Path:
    """Where the list of this task, file and parameters is. Raises ValueError for another file than the recipe's."""
    return store.path(f"{layout.SUITES}/{section.name}-task-{task_digest(section, store)[:16]}.jsonl")


def task_digest(section: LmEvalSuite, store: Store) -> str:
    """sha256 of the task: its file's bytes and its parameters. Raises ValueError as `task_list`."""
    content = lines.pinned(f"The task of the suite {section.name}", section.task, section.sha256, store)
    return digest_json([hashlib.sha256(content).hexdigest(), section.args])
