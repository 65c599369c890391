"""The exit-code contract of a training process: 0 a verified result, these two, and anything else for a crash."""

from __future__ import annotations

PREEMPTED = 143
"""Run me again: it resumes at the newest checkpoint."""
NEVER_RETRY = 64
"""The plan, or what it names, is wrong; the last lines say what to change."""


class InvalidPlan(ValueError):
    """What no retry makes fit, found in the plan, the tokenizer, the data or the processes: exit code 64."""
