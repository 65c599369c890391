"""Names, addresses and whatever else the formats of `pii.kinds` cannot show, counted in rows that the gates admitted.

A recogniser is Presidio, or any class with its interface: `analyze(text=..., language=...)` gives results with
`entity_type` and `score`. Owns what is kept of them: kinds and counts, never a text or a place in one. Refuses to mask
or to reject: a recogniser of names is wrong too often to decide that, and reads some ten to a hundred rows a second.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.traces.pii.presidio import MIN_SCORE, named_entities, patterns

LANGUAGE = "en"
FAILED = "FAILED"
"""Kind under which texts are counted that a recogniser could not read."""
OTHER = "OTHER"
"""Kind of a result whose own kind is no name of one: it may be a word of the text."""
BUILT_IN = {"presidio": named_entities, "presidio_patterns": patterns}
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_KIND = re.compile(r"[A-Z][A-Z0-9_]{0,39}")
_REMEMBERED = 4096
"""Texts whose counts a process remembers: system messages come with every row."""


class Recognised(NamedTuple):
    """What came of a batch. `column`: JSON of each row, `{recogniser: {kind: count}}`."""

    column: pa.Array
    kinds: Counter[str]
    seconds: float


def check_recognisers(names: Sequence[str]) -> None:
    """Raises ValueError, saying what to do, for one that cannot be loaded or has another interface."""
    for name in names:
        _loaded(name)


def identities(names: Sequence[str]) -> list[str]:
    """The names with the versions of the distributions that bring them: another one finds something else."""
    return [f"{name} {_version(name)}".strip() for name in names]


def recognise(batch: pa.RecordBatch, names: Sequence[str]) -> Recognised:
    """Look at every message, call of a tool, completion and reference of a batch. Raises as `check_recognisers`."""
    begun, kinds = time.process_time(), Counter[str]()
    texts = (batch[name].to_pylist() for name in ("messages", "completion", "tool_calls", "reference"))
    lines: list[str] = []
    for messages, *others in zip(*texts, strict=True):
        row_texts = [each[key] for each in messages for key in ("content", "tool_calls")] + others
        counts: dict[str, Counter[str]] = {name: Counter() for name in names}
        for name in names:
            for text in filter(None, row_texts):
                counts[name].update(dict(_counted(name, text)))
            kinds.update(counts[name])
        lines.append(json.dumps({name: dict(sorted(each.items())) for name, each in counts.items()}))
    return Recognised(pa.array(lines, pa.string()), kinds, time.process_time() - begun)


@lru_cache(_REMEMBERED)
def _counted(name: str, text: str) -> tuple[tuple[str, int], ...]:
    try:
        results = _loaded(name).analyze(text=text, language=LANGUAGE)
        sure = [str(each.entity_type) for each in results if each.score >= MIN_SCORE]
    except Exception:  # the boundary to code of others: one text that it cannot read stops nothing
        return ((FAILED, 1),)
    return tuple(Counter(kind if _KIND.fullmatch(kind) else OTHER for kind in sure).items())


@cache
def _loaded(name: str) -> Any:
    """The recogniser, once a process."""
    field = f"traces.recognisers, {name}"
    if name in BUILT_IN:
        return BUILT_IN[name]()
    if not _CLASS.fullmatch(name):
        raise ValueError(f"{field}: give one of {', '.join(BUILT_IN)}, or a class as package.module:Class.")
    module, _, attribute = name.partition(":")
    try:
        made: Any = getattr(import_module(module), attribute)()
    except (Exception, SystemExit) as error:  # the boundary to code of others
        raise ValueError(
            f"{field} cannot be made ({type(error).__name__}: {error}). Install the package that has it, and give the "
            "class a constructor without arguments."
        ) from error
    if not callable(getattr(made, "analyze", None)):
        raise ValueError(f"{field} has no method analyze(text, language). Give it Presidio's interface.")
    return made


@cache
def _version(name: str) -> str:
    owners = ["presidio-analyzer"]
    if name not in BUILT_IN:
        owners = packages_distributions().get(name.partition(":")[0].partition(".")[0], [])
    try:
        return " ".join(version(owner) for owner in owners)
    except PackageNotFoundError:
        return ""
