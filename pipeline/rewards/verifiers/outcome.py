"""What is asked of a verifier and what it may say."""

from enum import StrEnum
from typing import NamedTuple

from pipeline.recipe.rewards import VerifierKind


class Outcome(StrEnum):
    """What the check found. Only `correct` and `wrong` are labels; the others are reasons for having none
    (`unchecked`: there is nothing to check against), except `no_answer`, which counts as wrong: a completion that gives
    no answer has failed the prompt."""

    correct = "correct"
    wrong = "wrong"
    no_answer = "no_answer"
    unparsable_gold = "unparsable_gold"
    timeout = "timeout"
    error = "error"
    unchecked = "unchecked"

    @property
    def score(self) -> float | None:
        """1.0, 0.0, or None when the check itself failed."""
        return {"correct": 1.0, "wrong": 0.0, "no_answer": 0.0}.get(self.value)


class Grade(NamedTuple):
    """One verdict with the answer that was found ('' when none was)."""

    outcome: Outcome
    answer: str


class VerifierTask(NamedTuple):
    """One completion, what it is checked against, and how."""

    completion: str
    reference: str
    kind: VerifierKind = "math"
