"""Suites of lm-evaluation-harness: their items as it listed them (evals/harness.py), in a file below the data root. The
list is read like any suite, and so what will be asked is kept out of the training data."""

import hashlib
from pathlib import Path

from evals.suites.lines import drawn, pinned, rows
from evals.suites.suite import Item
from pipeline.core import layout
from pipeline.core.storage import Store, digest_json
from pipeline.recipe.suites import LmEvalSuite


def items(section: LmEvalSuite, store: Store, seed: int) -> tuple[Item, ...]:
    """The task's items as they were listed. Raises ValueError where they were not."""
    path = list_path(section, store)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ValueError(
            f"The items of the suite {section.name} are not listed yet: {path}. Set LM_EVAL_PYTHON, and list them: "
            "pt evals list RECIPE"
        ) from error
    try:
        return drawn(tuple(Item.model_validate(row) for _, row in rows(content)), section.items, seed)
    except ValueError as error:
        raise ValueError(f"The suite {section.name} at {path}: {error}. Remove the file and list it again.") from error


def list_path(section: LmEvalSuite, store: Store) -> Path:
    """Where the list of this task, file and parameters is. Raises ValueError for another file than the recipe's."""
    return store.path(layout.task_items(section.name, task_digest(section, store)))


def task_digest(section: LmEvalSuite, store: Store) -> str:
    """sha256 of the task: its file's bytes and its parameters. Raises ValueError as `pinned`."""
    content = pinned(f"The task of the suite {section.name}", section.task, section.sha256, store)
    return digest_json([hashlib.sha256(content).hexdigest(), section.args])
