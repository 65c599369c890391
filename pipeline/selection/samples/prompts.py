"""Which logged prompts are answered anew: a hash decides, and no user is behind more than their share of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from pipeline.recipe.samples import Samples
from pipeline.selection.pairing import LabelledRow, by_prompt


def sampled_prompts(rows: Sequence[LabelledRow], section: Samples, max_share: float) -> list[LabelledRow]:
    """One row for each prompt that is sampled, in the order of their hashes.

    `rows`: those that may be trained on. `max_share`: one user's share of the prompts that are wanted, at least one.
    """
    firsts = [group[0] for group in by_prompt(rows).values()]
    most = min(section.prompts, len(firsts), _affordable(section))
    allowed = max(1, int(max_share * most))
    behind: Counter[str] = Counter()
    chosen: list[LabelledRow] = []
    for row in sorted(firsts, key=lambda row: _place(section.seed, row.prompt)):
        if len(chosen) == most:
            break
        if behind[row.user_id] < allowed:
            behind[row.user_id] += 1
            chosen.append(row)
    return chosen


def prompt_id(prompt: str) -> str:
    """Identity of a prompt, by its text alone."""
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _affordable(section: Samples) -> int:
    """Prompts whose completions fit the budget if every one of them is as long as it may be."""
    if section.max_tokens is None:
        return section.prompts
    return section.max_tokens // (section.per_prompt * section.max_completion_tokens)


def _place(seed: int, prompt: str) -> str:
    return hashlib.sha256(f"{seed}/{prompt_id(prompt)}".encode()).hexdigest()
