"""The policy-freshness proof: at every weight sync, the engine that draws rollouts is shown to hold the policy.

`proof` decides, `guard` asks from sync to sync, `trl_engine` is what it asks inside a GRPOTrainer with vLLM.
"""

from __future__ import annotations

from pipeline.training.freshness.guard import FreshnessGuard, Probe, RolloutEngine, TrainedPolicy
from pipeline.training.freshness.proof import FreshnessProof, LogProbabilities, Movement, StalePolicy, prove_fresh

__all__ = [
    "FreshnessGuard",
    "FreshnessProof",
    "LogProbabilities",
    "Movement",
    "Probe",
    "RolloutEngine",
    "StalePolicy",
    "TrainedPolicy",
    "prove_fresh",
]
