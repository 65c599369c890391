"""Simulated labelled sets of which everything is known, the truth about each completion included."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.selection.pairing import LabelledRow, Pair


class World(NamedTuple):
    """What a simulated traffic is like. Shares in [0, 1]."""

    prompts: int = 3000
    completions: int = 4
    """Of each prompt."""
    verifiable: float = 0.8
    """Share of prompts with a reference; the others have users' feedback alone."""
    noise: float = 0.1
    """Chance that a user says the opposite of the truth."""
    diversity: float = 0.8
    """Chance that a completion is drawn afresh; else it is the one that the model favours for this prompt."""
    spread: float = 1.0
    """A fresh completion is right with a chance of Beta(solved spread, (1 - solved) spread): small is extreme."""
    solved: float = 0.5
    separation: float = 0.8
    """Rated labels: distance between the rewards of good and bad, around 0.5 and as far as 1."""
    rated: float = 0.5
    """Share of completions with users' feedback."""
    unlabelled: float = 0.05


class Simulated(NamedTuple):
    rows: list[LabelledRow]
    good: dict[str, bool]
    """The truth, by trace."""
    chance: dict[str, float]
    """Of a right answer, by prompt."""


def simulate(world: World, seed: int) -> Simulated:
    """The same world and seed give the same rows; worlds that differ in one figure share their other draws."""
    rows: list[LabelledRow] = []
    good: dict[str, bool] = {}
    chances: dict[str, float] = {}
    for prompt in range(world.prompts):
        dice = random.Random(f"{seed}/{prompt}")
        fresh = dice.betavariate(world.solved * world.spread, (1 - world.solved) * world.spread)
        reference = "1" if dice.random() < world.verifiable else None
        favoured = dice.random() < fresh
        chances[f"prompt {prompt}"] = world.diversity * fresh + (1 - world.diversity) * favoured
        for turn in range(world.completions):
            afresh, right, lie, heard, lost = (dice.random() for _ in range(5))
            own = afresh < world.diversity
            completion, is_good = (f"completion {turn}", right < fresh) if own else ("favoured", favoured)
            trace = f"{prompt:06}-{turn}"
            good[trace] = is_good
            says = is_good != (lie < world.noise)
            feedback = 0.5 + (0.5 if says else -0.5) * world.separation if heard < world.rated else None
            correct = None if reference is None or lost < world.unlabelled else float(is_good)
            reward = correct if reference else feedback
            row = labelled(trace, f"prompt {prompt}", completion, reward, "verified" if reference else "rated")
            verifier = "exact" if reference else None
            rows.append(row._replace(reference=reference, verifier=verifier, correct=correct, feedback=feedback))
    return Simulated(rows, good, chances)


def labelled(trace: str, prompt: str, completion: str, reward: float | None, profile: str) -> LabelledRow:
    """A row of a user of its own, of which nobody has said anything but its reward."""
    return LabelledRow(
        trace_id=trace, observation_id="", user_id=trace, tenant_id=None, consent=True, prompt=prompt,
        completion=completion, reference=None, verifier=None, final_reward=reward, profile=profile, correct=None,
        feedback=None, judge=None,
    )  # fmt: skip


def true_noise(pairs: Sequence[Pair], good: dict[str, bool]) -> float:
    """Share of the pairs that are the wrong way round, those of equally good completions counted half."""
    wrong = [(1 + good[pair.rejected.trace_id] - good[pair.chosen.trace_id]) / 2 for pair in pairs]
    return sum(wrong) / len(wrong) if wrong else 0.0
