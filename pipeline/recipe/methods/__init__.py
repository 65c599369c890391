"""Settings of the training methods. A new one also needs its trainer in `pipeline/training/methods`.

`MethodSettings` lists them in the order of preference: where the evidence allows several, the first is trained.
"""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.recipe.methods.grpo import GRPO
from pipeline.recipe.methods.method import Method
from pipeline.recipe.methods.tables import DPO, KTO, SFT
from pipeline.recipe.section import Section

__all__ = [
    "DPO", "GRPO", "KTO", "METHODS", "SFT", "AnyMethod", "Method", "MethodName", "MethodSettings",
    "titles",
]  # fmt: skip

MethodName = Literal["grpo", "dpo", "sft", "kto"]
AnyMethod = Annotated[GRPO | DPO | SFT | KTO, Field(discriminator="kind")]


class MethodSettings(Section):
    grpo: GRPO = GRPO()
    """Settings for an iteration that trains by GRPO."""
    dpo: DPO = DPO()
    """Settings for an iteration that trains by DPO."""
    sft: SFT = SFT()
    """Settings for an iteration that trains by SFT on the best of k."""
    kto: KTO = KTO()
    """Settings for an iteration that trains by KTO."""

    def by_name(self) -> dict[MethodName, AnyMethod]:
        """In the order of preference."""
        return {name: getattr(self, name) for name in METHODS}


METHODS: dict[MethodName, type[Method]] = {"grpo": GRPO, "dpo": DPO, "sft": SFT, "kto": KTO}


def titles(names: tuple[MethodName, ...]) -> str:
    """`GRPO and DPO`, for people."""
    return " and ".join(METHODS[name].title for name in names)
