"""The one checker of answers, shared by the reward and the evaluation so that they cannot drift apart."""

from pipeline.rewards.verifiers.answers import final_answer as final_answer
from pipeline.rewards.verifiers.answers import plain_number as plain_number
from pipeline.rewards.verifiers.answers import reference_answer as reference_answer
from pipeline.rewards.verifiers.grading import Grader as Grader
from pipeline.rewards.verifiers.grading import readable as readable
from pipeline.rewards.verifiers.outcome import Grade as Grade
from pipeline.rewards.verifiers.outcome import Outcome as Outcome
from pipeline.rewards.verifiers.outcome import VerifierTask as VerifierTask

VERSION = "verifiers/3"
"""Part of every label's provenance and of the evaluation's protocol; changes when a verdict could change."""
