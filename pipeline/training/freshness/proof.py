"""The proof's arithmetic: from three or four sets of log-probabilities to a `FreshnessProof`, or to a `StalePolicy`.

Rule. Engine and policy score the same probes. An old version is the base, or the one that was proven last.
1. The engine claims the version that was pushed.
2. It made the movement that the policy made since an old version. The share of it, sum of sign(policy - old) x
   (engine - old) over sum of |policy - old|, is 1 for the policy, 0 for the old version, about 0.5 for half an adapter.
3. The residual, mean |engine - policy| per token, is what kernels and precision make of equal weights, and no more.
Rollouts differ from the policy even when all is well (arXiv 2510.26788, 2605.14220), so no fixed tolerance would find a
small update that is missing. (2) decides when what is missing is three times the noise: the usual residual of the
proofs before, or what the share leaves unexplained where none is known. What is missing is never more than the
residual, so an engine whose noise stays below three times the usual is not refused, however its errors fall. Until
(2) decides the old version stays, and movement adds up. Not seen: less than that noise, or than a quarter of the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Literal, NamedTuple

import numpy as np

from pipeline.storage import Record

MAX_RESIDUAL = 0.2
"""Nats per token between two engines with the same weights, at most; bf16 makes about 0.01."""
ALLOWED_NOISE = 5.0
"""A residual may be this many times the usual one."""
STANDS_OUT = 3.0
"""What decides is this many times the noise."""
BAND = 0.25
"""How far a share may be from 1."""
SMALL = 2e-3
"""Nats per token: a residual below is never refused; an honest bf16 engine reaches 1e-3 on some processors."""
SIGMAS = 5.0
FEWEST_PROBES = 8
FLOOR = 1e-5
"""Nats per token: noise is never taken for less; float32 makes about 1e-6."""

Lie = Literal["wrong version", "base policy", "stale adapter", "scaled adapter", "other weights"]
Place = Literal["policy", "old", "elsewhere", "undecided"]
"""Where the engine is found between an old version and the policy."""
LogProbabilities = Sequence[Sequence[float]]
"""Per probe, the natural-log probability of each token of its completion, at temperature 1."""


class StalePolicy(ValueError):
    """Rollouts are not the policy's. `lie`: what the engine holds instead, as far as can be told."""

    def __init__(self, lie: Lie, message: str) -> None:
        super().__init__(f"{lie}: {message}")
        self.lie: Lie = lie


class Movement(Record):
    """What the policy moved since an old version, and what the engine made of it."""

    distance: float
    """Mean |policy - old|, nats per token."""
    share: float
    error: float
    """Standard error of `share`, over probes."""
    engine: Place


class FreshnessProof(Record):
    """One sync. `proven`: a stale engine would have been refused; otherwise nothing speaks against this one."""

    version: str
    proven: bool
    residual: float
    """Mean |engine - policy|, nats per token."""
    tokens: int
    since_base: Movement | None
    since_previous: Movement | None


class StalePolicies(NamedTuple):
    """What an engine that missed a push would say: before any training, and before this push. None: not known."""

    base: LogProbabilities | None = None
    previous: LogProbabilities | None = None


class ResidualLimits(NamedTuple):
    """Nats per token."""

    noise: float | None = None
    """The usual residual, if it is known."""
    tolerance: float = MAX_RESIDUAL
    """The greatest."""


NOTHING_STALE, LIMITS = StalePolicies(), ResidualLimits()


def prove_fresh(
    pushed: str,
    claimed: str,
    engine: LogProbabilities,
    policy: LogProbabilities,
    stale: StalePolicies = NOTHING_STALE,
    limits: ResidualLimits = LIMITS,
) -> FreshnessProof:
    """Decide by the rule above.

    Raises StalePolicy, and ValueError when the engine scored other tokens than the policy.
    """
    same_version(pushed, claimed)
    lengths = [len(row) for row in policy]
    if [len(row) for row in engine] != lengths:
        raise ValueError(
            f"The engine scored {sum(map(len, engine))} tokens of {len(engine)} probes, the policy {sum(lengths)} of "
            f"{len(lengths)}: ask it for the log-probabilities of the same token ids, the completion's alone."
        )
    noise, tolerance = limits
    old = {name: _flat(rows) for name, rows in stale._asdict().items() if rows is not None}
    engine_logprobs, right = _flat(engine), _flat(policy)
    usable = np.isfinite(np.stack([right, *old.values()])).all(axis=0)
    if bad := int((usable & ~np.isfinite(engine_logprobs)).sum()):
        raise StalePolicy(
            "other weights",
            f"{bad} of {len(engine_logprobs)} log-probabilities are no finite numbers. Restart the engine.",
        )
    if not usable.any():
        return FreshnessProof(
            version=pushed, proven=False, residual=0.0, tokens=0, since_base=None, since_previous=None
        )
    owner = np.repeat(np.arange(len(lengths)), lengths)[usable]
    engine_logprobs, right = engine_logprobs[usable], right[usable]
    old = {name: values[usable] for name, values in old.items()}
    residual = float(np.abs(engine_logprobs - right).mean())
    moved = {name: _movement(engine_logprobs, right, values, owner, noise) for name, values in old.items()}
    _refuse(moved, residual, tolerance if noise is None else min(tolerance, max(SMALL, ALLOWED_NOISE * noise)))
    since = moved.get("previous") or moved.get("base")
    return FreshnessProof(
        version=pushed,
        proven=since is not None and since.engine == "policy",
        residual=residual,
        tokens=len(engine_logprobs),
        since_base=moved.get("base"),
        since_previous=moved.get("previous"),
    )


def same_version(pushed: str, claimed: str) -> None:
    """Raises StalePolicy when the engine claims another version than the one that it was given."""
    if claimed != pushed:
        raise StalePolicy(
            "wrong version",
            f"the engine claims {claimed!r} where {pushed!r} was pushed. It restarted, or another training feeds it: "
            "give each training an engine of its own and resume from the last checkpoint.",
        )


def _flat(rows: LogProbabilities) -> np.ndarray:
    return np.array([value for row in rows for value in row], dtype=float)


def _movement(
    engine_logprobs: np.ndarray, right: np.ndarray, old: np.ndarray, owner: np.ndarray, usual: float | None
) -> Movement:
    """The share by signs, not by least squares: one unlikely token that jumped must not decide for all the others."""
    way = right - old
    whole = np.bincount(owner, np.abs(way))
    total, probes = float(whole.sum()), int((whole > 0).sum())
    distance = total / len(way)
    if probes < FEWEST_PROBES:
        return Movement(distance=distance, share=nan, error=nan, engine="undecided")
    engine_change = np.bincount(owner, np.sign(way) * (engine_logprobs - old))
    share = float(engine_change.sum()) / total
    error = float(np.sqrt(probes / (probes - 1) * np.square(engine_change - share * whole).sum())) / total
    noise = max(FLOOR, float(np.abs(engine_logprobs - old - share * way).mean()) if usual is None else usual)
    missing, spread = abs(share - 1), SIGMAS * error
    engine: Place = "undecided"
    if missing > max(BAND, spread) and missing * distance > STANDS_OUT * noise:
        engine = "old" if float(np.abs(engine_logprobs - old).mean()) < STANDS_OUT * noise else "elsewhere"
    elif missing <= BAND and spread <= 1 - BAND and distance > STANDS_OUT * noise:
        engine = "policy"
    return Movement(distance=distance, share=share, error=error, engine=engine)


def _refuse(moved: dict[str, Movement], residual: float, tolerance: float) -> None:
    lies = {name: m for name, m in moved.items() if m.engine in ("old", "elsewhere")}
    details = " and ".join(f"{m.share:.0%} of the {m.distance:.2g} nats a token since the {n}" for n, m in lies.items())
    held = {name for name, m in lies.items() if m.engine == "old"}
    if "base" in held:
        raise StalePolicy(
            "base policy",
            f"the engine moved {details}: it draws with the base. Check that requests name the adapter, or that the "
            "merged update is not lost in rounding (bf16 keeps 8 bits), and resume from the last checkpoint.",
        )
    if "previous" in held:
        raise StalePolicy(
            "stale adapter",
            f"the engine moved {details}: the last push did not arrive. Give each push a name and a path of its own, "
            "reset the prefix cache, and resume from the last checkpoint.",
        )
    if lies:
        raise StalePolicy(
            "scaled adapter",
            f"the engine moved {details}: an older push, a part of the adapter, or the whole by another factor. "
            "Compare alpha / r and the list of modules on both sides, and resume from the last checkpoint.",
        )
    if residual > tolerance:
        raise StalePolicy(
            "other weights",
            f"{residual:.2g} nats a token lie between engine and policy, {tolerance:.2g} at most are expected. Check "
            "that both loaded the same base model and tokenizer, or raise the tolerance for a quantised engine.",
        )
