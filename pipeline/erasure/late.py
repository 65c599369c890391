"""Models that were made while their data was being forgotten: tagged when they turn up, and added to the proof.

Owns what an erasure could not know yet: a version that a training under way ended in. Every stage that makes or
promotes a model asks here.
"""

from __future__ import annotations

from datetime import datetime

from pipeline import layout
from pipeline.erasure import mirrored
from pipeline.erasure.proof import Affected, ErasureProof, proof_name, publish
from pipeline.iteration import Iteration
from pipeline.registry import versions
from pipeline.rollout.blocks import block, blocking
from pipeline.storage import Store
from pipeline.training.result import TrainingResult


def blocked_iteration(store: Store, registry_uri: str, iteration: Iteration, now: datetime) -> str:
    """Why nothing may be made of an iteration any more, "" where no erasure blocks it. What it has made by now is
    blocked, tagged in MLflow and in the proofs when this returns."""
    active_blocks = blocking(store, iteration.id)
    if not active_blocks:
        return ""
    result = store.read(iteration.path(layout.RESULT), TrainingResult)
    digests = {result.checkpoint.adapter.digest, result.checkpoint.model.digest} if result is not None else set[str]()
    registrations = versions.registered(registry_uri, iteration.model_name, [iteration.id])
    named = {f"{each.name} version {each.version}" for each in registrations}
    late = Affected(versions=tuple(sorted(named)), digests=tuple(sorted(digests)))
    for each in active_blocks:
        if not digests <= set(each.digests):
            block(store, each.model_copy(update={"digests": tuple(sorted({*each.digests, *digests}))}))
        versions.tag_blocked(registry_uri, registrations, each.proof, each.reason)
        proof = store.read(proof_name(each.proof), ErasureProof)
        if proof is not None and (affected := proof.affected.plus(late)) != proof.affected:
            publish(store, proof.model_copy(update={"affected": affected}), now)
    list(mirrored.remove(store, [iteration.id]))  # what a trainer that was killed put there last
    reason = active_blocks[0].reason
    return f"iteration {iteration.id} is blocked: {reason}. Materialise the traces for a new iteration."
