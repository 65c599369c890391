"""The policy-freshness proof: at every weight sync, the engine that draws rollouts is shown to hold the policy.

`proof` decides, `guard` asks from sync to sync, `trl_engine` is what it asks inside a GRPOTrainer with vLLM.
"""

from __future__ import annotations

from pipeline.training.freshness.guard import Engine, FreshnessGuard, Policy, Probe
from pipeline.training.freshness.proof import LogProbabilities, Movement, Proof, StalePolicy, prove_fresh

__all__ = [
    "Engine",
    "FreshnessGuard",
    "LogProbabilities",
    "Movement",
    "Policy",
    "Probe",
    "Proof",
    "StalePolicy",
    "prove_fresh",
]
