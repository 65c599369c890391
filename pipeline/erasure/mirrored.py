"""Copies of checkpoints in an object store, which learned from a forgotten user's rows.

Owns the sentence for a person. Refuses to delete there, as of models here: nobody can be searched for in weights.
"""

from __future__ import annotations

from collections.abc import Collection

from pipeline import layout
from pipeline.storage import Store
from pipeline.training.plan import TrainingPlan


def mirrored(store: Store, iterations: Collection[str]) -> tuple[str, ...]:
    """Where checkpoints of these iterations (ids) lie too, and what to do. Raises ValueError for a plan that cannot be
    read."""
    lines: list[str] = []
    for id in sorted(iterations):
        plan = store.read(f"{layout.iteration(id)}/{layout.PLAN}", TrainingPlan)
        if plan is not None and plan.data is not None and (mirror := plan.training.checkpoints.mirror):
            lines.append(f"{mirror}: delete the checkpoints of iteration {id}, which learned from the user's rows")
    return tuple(lines)
