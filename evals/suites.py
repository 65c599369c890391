"""Suites: the held-out items that champion and candidate both answer.

Owns which items there are, their ids, clusters and slices, and the digest that pins them. Refuses to sample or grade.
A cluster is a group of items whose outcomes hang together, so that standard errors may not count them as independent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.demo.task import Problem, is_held_out, problems, solution_steps
from pipeline.recipe import Evaluation
from pipeline.serving.sample import Messages
from pipeline.storage import Record, digest_json

DEMO_SUITE = "arithmetic"
"""Made for the embedded model: of any other it says little."""


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


def suite(section: Evaluation) -> Suite:
    """The suite that the recipe names: `section.items` items drawn with `section.seed`, the same at each call."""
    return SUITES[section.suite](section)


def held_out_texts(section: Evaluation) -> dict[str, tuple[str, ...]]:
    """The items' texts of every suite that there is, whichever the recipe names: training data may hold none of them.

    Prompts alone: the worked solutions of `arithmetic` are numbers without a word, which identify nothing.
    """
    return {
        name: tuple("\n".join(message["content"] for message in item.messages) for item in make(section).items)
        for name, make in SUITES.items()
    }


def _arithmetic(section: Evaluation) -> Suite:
    drawn = problems(section.seed, "heldout", section.items)
    items = (
        Item(
            id=f"arithmetic-{section.seed}-{number:05d}",
            cluster=_held_out_step(problem),
            messages=[{"role": "user", "content": problem.prompt}],
            reference=problem.answer,
            slice=problem.kind,
        )
        for number, problem in enumerate(drawn)
    )
    return Suite(name=DEMO_SUITE, items=tuple(items))


def _held_out_step(problem: Problem) -> str:
    """The first held-out elementary step, such as `27+35`: who can do it answers every item that needs it.

    Few items (about 2%) need a second one; they stay with the first.
    """
    steps = solution_steps(problem.kind, problem.operands)
    left, symbol, right, _ = next(step for step in steps if is_held_out(*step[:3]))
    first, second = sorted((left, right)) if symbol == "+" else (left, right)
    return f"{first}{symbol}{second}"


SUITES: Mapping[str, Callable[[Evaluation], Suite]] = {DEMO_SUITE: _arithmetic}
"""Every suite, by the name that the recipe knows it under."""
