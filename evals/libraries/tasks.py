"""Lists the items of a library's task, once for its file and parameters. Refuses to run it (runs.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from evals.libraries.environment import LibraryEnvironments
from evals.suites import Item
from evals.suites.tasks import list_path
from pipeline.core.storage import Store, digest_json, write_atomically
from pipeline.recipe.suites import InspectSuite, LibrarySuite, LmEvalSuite

Log = Callable[[str], None]


def ensure_listed(section: LibrarySuite, store: Store, environments: LibraryEnvironments, log: Log) -> Path:
    """The file of the task's items, after the library listed them where it is not there.

    Raises ValueError for a task that cannot be asked here, RuntimeError where the library ends.
    """
    path = list_path(section, store)
    if not path.is_file():
        log(f"evaluation: listing the items of {section.name} ({section.task})")
        if isinstance(section, InspectSuite):
            listed = environments.inspect.call("inspect_tasks", "listing", spec=task_spec(section))
        else:
            listed = environments.lm_eval.call("lm_eval_tasks", "listing", spec=task_spec(section))
        read = parse(listed, section.name)
        write_atomically(path, "".join(item.model_dump_json() + "\n" for item in read))
    return path


def parse(listed: list[dict[str, Any]], name: str) -> tuple[Item, ...]:
    """The items that a library listed. Raises ValueError where they cannot be told apart."""
    read = tuple(
        Item(
            id=each["id"],
            cluster=each["metadata"].get("cluster", each["id"]),
            messages=each["messages"],
            reference=each["target"],
            slice=each["metadata"].get("slice", ""),
        )
        for each in listed
    )
    if not read:
        raise ValueError(f"The task of the suite {name} has no items. Give it a dataset.")
    for what, keys in (("id", [i.id for i in read]), ("prompt", [digest_json(i.messages) for i in read])):
        if repeated := next((place for place, key in enumerate(keys) if key in keys[:place]), None):
            raise ValueError(
                f"The task of the suite {name} has the {what} of item {read[repeated].id!r} twice. Keep one of them."
            )
    return read


def task_spec(section: LibrarySuite) -> dict[str, Any]:
    """What a script needs to make the task."""
    arguments: dict[str, Any] = {"file": str(Path(section.file).absolute()), "args": section.args}
    if isinstance(section, LmEvalSuite):
        return arguments
    return {**arguments, "name": section.task.rpartition("@")[2]}
