"""Suites that an installed package makes (`preference_tuning.suites`): its rows, held to what a file's lines are.

Owns the way from a plug-in's rows to items. Refuses to be laxer with them than with a file: `lines` judges each.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from evals.suites import lines
from evals.suites.suite import Item
from pipeline.plugins import InstalledPlugin, build, fault, unlike
from pipeline.recipe.suites import JsonlSuite, PluginSuite
from pipeline.storage import Store


def items(section: PluginSuite, store: Store, seed: int) -> tuple[Item, ...]:
    """The plug-in's items, in its order. Raises ValueError for all that is wrong with it or with one of them."""
    plugin = section.installed()
    content = b"".join(_line(plugin, row) for row in _rows(plugin, section, seed))
    try:
        read = lines.parse(content, JsonlSuite(name=section.name, path="", check=section.check))
        return lines.drawn(read, section.items, seed)
    except ValueError as error:
        raise ValueError(f"The suite {section.name} of {plugin.digest}: {error}") from error


def _rows(plugin: InstalledPlugin, section: PluginSuite, seed: int) -> list[Any]:
    items: Any = build(plugin, seed, options=section.options)
    if not isinstance(items, Iterable):
        raise unlike(plugin, f"it returned {type(items).__name__}, which holds no items")
    try:
        return list(cast(Iterable[Any], items))
    except ValueError:
        raise
    except Exception as error:  # the boundary to code of others
        raise fault(plugin, error, "made its items") from error


def _line(plugin: InstalledPlugin, row: Any) -> bytes:
    if not isinstance(row, Mapping):
        raise unlike(plugin, f"an item is {type(row).__name__}, no mapping")
    try:
        return json.dumps(dict(cast(Mapping[Any, Any], row)), ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise unlike(plugin, f"an item is no JSON ({error})") from error
