"""The guard of a training: asks engine and policy at each sync, and carries what was proven to the next one.

Owns which probes are asked, and what an undecided sync means. Knows engine and policy by two small protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple, Protocol

from pipeline.training.freshness.proof import (
    MAX_RESIDUAL,
    FreshnessProof,
    LogProbabilities,
    ResidualLimits,
    StalePolicies,
    prove_fresh,
    same_version,
)


class Probe(NamedTuple):
    """Token ids; only the completion's are scored."""

    prompt: Sequence[int]
    completion: Sequence[int]


class RolloutEngine(Protocol):
    """What draws rollouts. A sync reaches several replicas where every process has an engine of its own."""

    def version(self) -> str:
        """The version of the weights that it claims to hold."""
        ...

    def log_probabilities(self, probes: Sequence[Probe]) -> Sequence[LogProbabilities]:
        """What each replica says of the probes."""
        ...


class TrainedPolicy(Protocol):
    """What is trained."""

    def log_probabilities(self, probes: Sequence[Probe]) -> LogProbabilities: ...

    def base_log_probabilities(self, probes: Sequence[Probe]) -> LogProbabilities | None:
        """Before any training; None where those weights are gone (no adapter that could be switched off)."""
        ...


class GuardSettings(NamedTuple):
    tolerance: float = MAX_RESIDUAL
    """The greatest residual, nats per token."""
    probes: int = 32
    """Completions that are compared at each sync."""
    tokens: int = 64
    """Of a probe, from its beginning."""
    patience: int = 20
    """Syncs in a row that prove nothing, after which a line says so."""


SETTINGS = GuardSettings()


class FreshnessGuard:
    """The proof from sync to sync: picks probes, remembers what was proven, and counts what could not be decided.

    Probes are completions that the coming update is computed on, because its gradient moves exactly those. They are
    replaced after each proof; as long as nothing is decided they stay, and so does the version to compare with.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        policy: TrainedPolicy,
        settings: GuardSettings = SETTINGS,
        log: Callable[[str], None] = print,
    ) -> None:
        self._engine, self._policy, self._settings, self._log = engine, policy, settings, log
        self._probes: list[Probe] = []
        self._base: LogProbabilities | None = None
        self._previous: LogProbabilities | None = None
        self._renew = False
        self._residuals: list[float] = []
        self.undecided = 0
        """Syncs in a row that proved nothing."""

    def check(self, version: str, candidates: Sequence[Probe]) -> FreshnessProof:
        """After a push, before anything is drawn. `candidates`: probes, for the first sync; raises StalePolicy."""
        if not self._probes:
            self._choose(candidates)
            self._renew = True
        policy, claimed = self._policy.log_probabilities(self._probes), self._engine.version()
        proofs = [
            prove_fresh(
                version,
                claimed,
                replica,
                policy,
                StalePolicies(self._base, self._previous),
                ResidualLimits(median(self._residuals[-32:]) if self._residuals else None, self._settings.tolerance),
            )
            for replica in self._engine.log_probabilities(self._probes)
        ]
        worst = min(proofs, key=lambda proof: (proof.proven, -proof.residual))
        if worst.proven:
            self._residuals.append(worst.residual)
            self.undecided, self._renew = 0, True
        else:
            self.undecided += 1
            if self.undecided % self._settings.patience == 0:
                self._log(
                    f"freshness: {self.undecided} syncs in a row proved nothing, the policy moved less than the noise "
                    f"of {worst.residual:.2g} nats a token. Raise the learning rate, or look whether it trains at all."
                )
        return worst

    def remember(self, version: str, candidates: Sequence[Probe]) -> None:
        """After rollouts were drawn, before the update: the next probes. Raises StalePolicy for another version."""
        same_version(version, self._engine.version())
        if self._renew and candidates:
            self._choose(candidates)
            self._previous = self._policy.log_probabilities(self._probes)
            self._renew = False

    def _choose(self, candidates: Sequence[Probe]) -> None:
        step = max(1, len(candidates) // self._settings.probes)  # spread, because neighbours answer the same prompt
        self._probes = [
            Probe(p, c[: self._settings.tokens]) for p, c in candidates[::step][: self._settings.probes] if p and c
        ]
        self._base = self._policy.base_log_probabilities(self._probes)
