"""Suites that code of the user's own makes: its rows are read as a file's lines are."""

from __future__ import annotations

import json

from evals.suites import lines
from evals.suites.suite import Item
from pipeline.core.storage import Store
from pipeline.recipe.custom import create
from pipeline.recipe.suites import CustomSuite, JsonlSuite


def items(section: CustomSuite, store: Store, seed: int) -> tuple[Item, ...]:
    """The items, in their order. Raises ValueError for what is wrong with the code or with one of them."""
    rows = create(section, seed)
    try:
        content = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows).encode()
        read = lines.parse(content, JsonlSuite(name=section.name, path="", check=section.check))
        return lines.drawn(read, section.items, seed)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The suite {section.name} of {section.code}: {error}") from error
