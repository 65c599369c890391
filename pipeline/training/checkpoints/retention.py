"""Which checkpoints are kept, and which one is the best. Pure: the disk and the mirror both ask here."""

from __future__ import annotations

import math
from collections.abc import Collection

from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints.manifest import CheckpointManifest


def keep(manifests: Collection[CheckpointManifest], committed: int, settings: Checkpoints) -> set[int]:
    """Steps to keep: the last ones up to the one just `committed`, and the best ones by score beside them.

    What is newer than `committed` was passed over at the start or is not known here, so it neither takes a place nor
    is dropped: callers drop steps up to `committed` alone.
    """
    past = [each for each in manifests if each.step <= committed]
    last = sorted((each.step for each in past), reverse=True)[: settings.keep_last]
    best = sorted((each for each in past if scored(each)), key=rank, reverse=True)[: settings.keep_best]
    return {committed, *last, *(each.step for each in best)}


def rank(manifest: CheckpointManifest) -> tuple[float, int]:
    """Sorts the best last. Of equal scores the earlier step is better: it is nearer to the base model.

    A checkpoint without a score, or whose score is not a number, is worse than any other; the newest of these first.
    """
    return (manifest.score or 0.0, -manifest.step) if scored(manifest) else (-math.inf, manifest.step)


def scored(manifest: CheckpointManifest) -> bool:
    return manifest.score is not None and math.isfinite(manifest.score)
