"""Suites of lm-evaluation-harness: their items as it listed them (evals/harness.py), in a file below the data root. The
list is read like any suite, and so what will be asked is kept out of the training data."""

from __future__ import annotations

import hashlib
from pathlib import Path

from evals.suites.lines import drawn, rows
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
    """sha256 of the task: its file's bytes and its parameters.

    Raises ValueError where the file is not there, is not the one of the recipe's sha256, or needs one.
    """
    path = Path(section.task).absolute()
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(f"The task of the suite {section.name} is not at {path} ({error.strerror}).") from error
    if not section.sha256 and not path.is_relative_to(store.root):
        raise ValueError(
            f"The task of the suite {section.name} lies outside the data root, where it may change unseen. "
            f"Give its sha256: {digest}"
        )
    if section.sha256 not in ("", digest):
        raise ValueError(
            f"The task of the suite {section.name} at {path} has the sha256 {digest}, and the recipe says "
            f"{section.sha256}. Fetch the file again, or put this digest into the recipe."
        )
    return digest_json([digest, section.args])
