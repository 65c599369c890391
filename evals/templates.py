"""Suites that a model's chat template cannot ask: known before a training is paid for, from files alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evals.suites import Suite
from pipeline.core.chat_template import support_of
from pipeline.core.template_files import folder_template


def template_refusals(suites: Sequence[Suite], folder: str) -> list[str]:
    """One line for each suite with items of which the template in a model's directory leaves something out."""
    template = folder_template(Path(folder)) if Path(folder).is_dir() else None
    if template is None:
        return []
    refusals: list[str] = []
    for suite in suites:
        lacking = support_of(template).lacking([suite.messages(item) for item in suite.items])
        if lacking:
            counted = ", ".join(f"{what} ({count:,} of {len(suite.items):,} items)" for what, count in lacking.items())
            refusals.append(
                f"the suite {suite.name} cannot be asked: the chat template of {folder} leaves out {counted}. Save the "
                "tokenizer with a template that renders them, or leave the suite out."
            )
    return refusals
