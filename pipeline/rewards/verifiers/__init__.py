"""The one checker of answers, shared by the reward and the evaluation so that they cannot drift apart."""

from pipeline.rewards.verifiers.answers import MAX_ANSWER_CHARS, final_answer, plain_number, reference_answer
from pipeline.rewards.verifiers.grading import Grader, readable
from pipeline.rewards.verifiers.outcome import Grade, Outcome, VerifierTask

__all__ = [
    "MAX_ANSWER_CHARS",
    "VERSION",
    "Grade",
    "Grader",
    "Outcome",
    "VerifierTask",
    "final_answer",
    "plain_number",
    "readable",
    "reference_answer",
]

VERSION = "verifiers/3"
"""Part of every label's provenance and of the evaluation's protocol; changes when a verdict could change."""
