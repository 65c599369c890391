"""The rollout under everybody who acts on it at once (machine.py), for a few runs."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase

from tests.pipeline.rollout.machine import RolloutMachine

RolloutMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    phases=[HypothesisPhase.explicit, HypothesisPhase.generate],  # shrinking takes minutes
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestRollout = pytest.mark.slow(RolloutMachine.TestCase)
