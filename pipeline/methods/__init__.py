"""The training methods. Adding one: its module, a line in the union, the names and the settings below, and its tests.

`MethodSettings` lists them in the order of preference: where the evidence allows several, the first is trained.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.methods.dpo import DPO
from pipeline.methods.grpo import GRPO, DynamicSampling
from pipeline.methods.method import Method
from pipeline.section import Section

__all__ = ["DPO", "GRPO", "METHODS", "AnyMethod", "DynamicSampling", "Method", "MethodName", "MethodSettings", "titles"]

MethodName = Literal["grpo", "dpo"]
AnyMethod = Annotated[GRPO | DPO, Field(discriminator="kind")]


class MethodSettings(Section):
    grpo: GRPO = GRPO()
    """Settings for an iteration that trains by GRPO."""
    dpo: DPO = DPO()
    """Settings for an iteration that trains by DPO."""

    def by_name(self) -> dict[MethodName, AnyMethod]:
        """In the order of preference."""
        return {name: getattr(self, name) for name in METHODS}


METHODS: dict[MethodName, type[Method]] = {"grpo": GRPO, "dpo": DPO}


def titles(names: tuple[MethodName, ...]) -> str:
    """`GRPO and DPO`, for people."""
    return " and ".join(METHODS[name].title for name in names)
