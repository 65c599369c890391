"""Suites: the held-out items that champion and candidate both answer, read from a file of JSON lines.

Owns what a suite is, and the digest that pins it. Refuses to make items, to sample or to grade.
A cluster is a group of items whose outcomes hang together, so that standard errors may not count them as independent.
"""

from __future__ import annotations

import shlex

from pydantic import ValidationError

from pipeline import layout
from pipeline.recipe import Evaluation
from pipeline.serving.sample import Messages
from pipeline.storage import Record, Store, digest_json


class Item(Record):
    """One prompt with its reference answer. `slice` groups items for the report, which never gates on a slice."""

    id: str
    cluster: str
    messages: Messages
    reference: str
    slice: str


class Suite(Record):
    """The items of one evaluation, in a fixed order."""

    name: str
    items: tuple[Item, ...]

    def digest(self) -> str:
        """sha256 of the content, whatever the order of the items."""
        return digest_json([self.name, *(item.model_dump() for item in sorted(self.items, key=lambda item: item.id))])


def suite(store: Store, section: Evaluation) -> Suite:
    """The suite that the recipe names, from its file below the data root.

    Raises ValueError when the file is not there, when a line of it is no item, and when it has not `section.items`.
    """
    path = store.path(layout.suite(section.suite, section.seed, section.items))
    write = f"python -m pipeline.demo.suite {shlex.quote(str(path))} --seed {section.seed} --items {section.items}"
    try:
        read = parse(section.suite, path.read_bytes())
    except FileNotFoundError as error:
        raise ValueError(f"The evaluation's suite is not there: {path}. Write it again: {write}") from error
    except ValueError as error:
        raise ValueError(f"The evaluation's suite {path} cannot be read: {error}. Write it again: {write}") from error
    if len(read.items) != section.items:
        raise ValueError(
            f"The evaluation's suite {path} has {len(read.items)} items, and evaluation.items is {section.items}. "
            f"Write it again: {write}"
        )
    return read


def parse(name: str, content: str | bytes) -> Suite:
    """A suite from the content of its file. Raises ValueError naming the first line that is no item."""
    lines = (content.encode() if isinstance(content, str) else content).split(b"\n")
    items: list[Item] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            items.append(Item.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise ValueError(f"line {number} is no item ({where}: {first['msg']})") from error
    return Suite(name=name, items=tuple(items))


def held_out_texts(asked: Suite) -> dict[str, tuple[str, ...]]:
    """The items' texts by the suite's name: training data may hold none of them.

    Prompts alone: a reference may be a bare number, which identifies nothing.
    """
    return {
        asked.name: tuple("\n".join(message["content"] for message in item.messages) for item in asked.items),
    }
