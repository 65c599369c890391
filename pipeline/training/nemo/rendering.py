"""A method as NeMo RL runs it: the part of configuration, data and limits that differs between methods."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from pipeline.training.plan import TrainingPlan

Tree = dict[str, Any]
Row = dict[str, Any]
TokenCount = Callable[[Sequence[Row], bool], int]
"""Tokens of messages; True: with the words that open an answer."""


class Rendering(ABC):
    """Of one plan. Everything in it is a pure function of the plan."""

    example: ClassVar[str]
    """The file in NeMo RL's `examples/configs` whose keys are inherited."""
    script: ClassVar[str]
    """The file in `examples` that trains."""
    dataset: ClassVar[str]
    """NeMo RL's class for the rows."""

    @abstractmethod
    def limits(self) -> Iterator[str]:
        """Each setting that NeMo RL cannot express, and what to change."""

    @abstractmethod
    def sections(self) -> Tree:
        """The sections of the configuration that are the method's own."""

    @abstractmethod
    def policy(self) -> Tree:
        """Its keys in the section `policy`."""

    @abstractmethod
    def data_default(self) -> Row:
        """Its keys in `data.default`."""

    @abstractmethod
    def data_source(self) -> Row:
        """Its keys in `data.train` and `data.validation`."""

    @abstractmethod
    def refuse(self, rows: Sequence[Row]) -> None:
        """Raise ValueError for rows that the dataset's class cannot hold."""

    @abstractmethod
    def line(self, row: Row) -> Row:
        """A row of the plan, or of its held-out prompts, as a line of the file."""

    def held_out_lines(self, rows: Sequence[Row]) -> list[Row]:
        """Lines of the held-out file: as many of a prompt as it is answered at one validation."""
        return [self.line(row) for row in rows]

    @abstractmethod
    def longest(self, rows: Sequence[Row], tokens: TokenCount) -> int:
        """Tokens of the longest sequence, prompt and completion."""


def rendering(plan: TrainingPlan) -> Rendering:
    """Of the plan's method. Raises ValueError for a method that is not rendered for NeMo RL."""
    from pipeline.training.nemo.dpo import DPORendering
    from pipeline.training.nemo.grpo import GRPORendering

    method = plan.trained_by()
    match method.kind:
        case "grpo":
            return GRPORendering(plan, method)
        case "dpo":
            return DPORendering(plan, method)
        case _:
            raise ValueError(
                f"training.engine nemo_rl: {method.title} is not rendered for NeMo RL. Set training.engine trl."
            )


def distinct(values: Iterable[Any]) -> list[Any]:
    return [json.loads(text) for text in dict.fromkeys(map(json.dumps, values))]
