"""The checker for one call, or for a block."""

from collections.abc import Sequence
from contextlib import closing

from pipeline.recipe.rewards import Verifier
from pipeline.rewards.verifiers import Grade, Grader, VerifierTask


def grader(workers: int = 2, timeout_s: float = 5.0) -> closing[Grader]:
    return closing(Grader(Verifier(workers=workers, timeout_s=timeout_s)))


def grade(checks: Sequence[VerifierTask | tuple[str, str]], workers: int = 2, timeout_s: float = 5.0) -> list[Grade]:
    with grader(workers, timeout_s) as check:
        return check(checks)
