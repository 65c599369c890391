"""The recipe's section on fresh samples: completions of the champion to logged prompts, drawn to be scored."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from pipeline.recipe.section import Section
from pipeline.recipe.serving import AnyServing, TransformersServing


class Samples(Section):
    prompts: PositiveInt = 512
    """Logged prompts that are answered anew, at most; a hash chooses them, within `selection.max_principal_share`."""
    per_prompt: Annotated[int, Field(ge=2, le=64)] = 8
    """Completions of each. Pairs, winners and the gain of the best of them all need at least two."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Of the draw; at 0 all completions of a prompt would be one."""
    max_completion_tokens: PositiveInt = 512
    """A completion that has not ended by then is worth 0 where no reference can check it."""
    max_tokens: PositiveInt | None = 20_000_000
    """Budget of drawn tokens; prompts are left out until all completions at their longest fit. null: no limit."""
    seed: ClassVar[int] = 0
    """Decides prompts and completions."""
    serving: AnyServing = TransformersServing()
    """What answers: see evaluation.serving. An endpoint is asked under its name for the champion."""
