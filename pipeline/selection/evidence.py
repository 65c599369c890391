"""What the labelled set can teach, in numbers. Measures only; `choose.py` judges."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from pipeline.storage import Record


class Labelled(NamedTuple):
    """One labelled trace, as selection reads it. `final_reward` and the components are None where there is none."""

    trace_id: str
    user_id: str
    prompt: str
    """The chat messages as canonical JSON: equal prompts are equal strings."""
    completion: str
    reference: str | None
    final_reward: float | None
    correct: float | None
    feedback: float | None


class Evidence(Record):
    """Counts and shares over one labelled set; shares are in [0, 1] and 0 where there is nothing to divide by."""

    traces: int
    labelled: int
    coverage: float
    prompts: int
    verifiable_prompts: int
    verifiable_share: float
    groups: int
    """Prompts with at least two labelled completions."""
    zero_variance_share: float
    """Share of groups whose rewards are all equal: all right or all wrong, no gradient for GRPO."""
    frontier_prompts: int
    """Verifiable prompts that are not already answered right every time."""
    distinct_completions: float
    """Mean number of distinct completions in a group."""
    pairs: int
    mean_margin: float
    label_noise: float
    """Share of traces with both signals on which feedback and verifier disagree."""
    noise_sample: int


def measure(rows: Sequence[Labelled], groups: dict[str, list[Labelled]], margins: Sequence[float]) -> Evidence:
    """Evidence of a labelled set, its groups by prompt, and the margins of the pairs built from it."""
    labelled = [row for row in rows if row.final_reward is not None]
    verifiable = {prompt: group for prompt, group in groups.items() if any(row.reference for row in group)}
    several = [[row for row in group if row.final_reward is not None] for group in groups.values()]
    several = [group for group in several if len(group) > 1]
    both = [(row.correct, row.feedback) for row in rows if row.correct is not None and row.feedback is not None]
    return Evidence(
        traces=len(rows),
        labelled=len(labelled),
        coverage=_share(len(labelled), len(rows)),
        prompts=len(groups),
        verifiable_prompts=len(verifiable),
        verifiable_share=_share(len(verifiable), len(groups)),
        groups=len(several),
        zero_variance_share=_share(sum(_constant(group) for group in several), len(several)),
        frontier_prompts=sum(not always_right(group) for group in verifiable.values()),
        distinct_completions=fmean(len({row.completion for row in g}) for g in several) if several else 0.0,
        pairs=len(margins),
        mean_margin=fmean(margins) if margins else 0.0,
        label_noise=_share(sum(abs(correct - thumbs) > 0.5 for correct, thumbs in both), len(both)),
        noise_sample=len(both),
    )


def always_right(group: Sequence[Labelled]) -> bool:
    """True when at least three completions were verified and every one was right: nothing left to learn."""
    verified = [row.correct for row in group if row.correct is not None]
    return len(verified) >= 3 and all(value == 1.0 for value in verified)


def _constant(group: Sequence[Labelled]) -> bool:
    verified = [row.correct for row in group if row.correct is not None]
    values = verified if len(verified) > 1 else [row.final_reward for row in group]
    return len(set(values)) == 1


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
