"""The embedded models' suites, as the demo wrote them below the data root: files like any other, with known names."""

from __future__ import annotations

import shlex
from typing import Any

from pydantic import ValidationError

from evals.suites.lines import rows
from evals.suites.suite import Item
from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.recipe.suites import EmbeddedSuite


def items(section: EmbeddedSuite, store: Store, seed: int) -> tuple[Item, ...]:
    seed = seed if section.seed is None else section.seed
    path = store.path(layout.suite(section.name, seed, section.items))
    write = f"python -m pipeline.demo.suite {shlex.quote(str(path))} --seed {seed} --items {section.items}"
    write += f" --kind {section.kind}" if section.kind != "arithmetic" else ""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ValueError(f"The suite {section.name} is not there: {path}. Write it again: {write}") from error
    try:
        return parse(content, section.items)
    except ValueError as error:
        raise ValueError(
            f"The suite {section.name} cannot be read: {path}: {error}. Write it again: {write}"
        ) from error


def parse(content: bytes, count: int) -> tuple[Item, ...]:
    """The items of the file's content. Raises ValueError where a line is no item, or they are not `count`."""
    read = tuple(_item(number, row) for number, row in rows(content))
    if len(read) != count:
        raise ValueError(f"it has {len(read)} items, and {count} are asked for")
    return read


def _item(number: int, row: dict[str, Any]) -> Item:
    try:
        return Item.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the line"
        raise ValueError(f"line {number} is no item ({where}: {first['msg']})") from error
