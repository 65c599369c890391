"""Recipe section `training.tools`: what a tool that a fresh completion calls returns."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveInt

from pipeline.recipe.section import Section


class RecordedTools(Section):
    """Results that the traces recorded stand in for the tools of GRPO's completions: no tool is run."""

    on_miss: Literal["error", "end"] = "error"
    """What happens at a call that its conversation has no recorded result of: the policy is given `error` and goes on,
    or the episode ends with the call, which is then its answer."""
    error: ClassVar[str] = "No result is recorded for this call."
    """What the tool says of such a call."""
    max_calls: PositiveInt = 4
    """Turns of one episode whose calls get a result; a later one ends it."""
    max_tokens: PositiveInt = 1024
    """Length limit of an episode, calls and results included. A turn for which it leaves fewer than
    `grpo.max_completion_tokens` is not begun: such an episode has not ended."""
