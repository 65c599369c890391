"""Models that were made while their data was being forgotten: tagged when they turn up, and added to the proof.

Owns what an erasure could not know yet: a version that a training under way ended in. Every stage that makes or
promotes a model asks here.
"""

from __future__ import annotations

import secrets
from datetime import datetime

from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.governance.erasure import mirrored
from pipeline.governance.erasure.proof import Affected, ErasureProof, proof_name, proofs, publish
from pipeline.registry import versions
from pipeline.rollout.blocks import block, blocking
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
        first = store.read(proof_name(each.proof), ErasureProof)
        known = Affected() if first is None else proved(store, first)
        if first is not None and known.plus(late) != known:
            new = {"id": secrets.token_hex(8), "nonce": secrets.token_hex(16), "requested": now, "finished": now}
            publish(store, first.model_copy(update={**new, **_BARE, "follows": first.id, "affected": late}), now)
    list(mirrored.remove(store, [iteration.id]))  # what a trainer that was killed put there last
    reason = active_blocks[0].reason
    return f"iteration {iteration.id} is blocked: {reason}. Materialise the traces for a new iteration."


_BARE = {"places": {}, "champion": "", "swept_files": 0, "swept_bytes": 0, "remains": (), "outside": ()}


def proved(store: Store, first: ErasureProof) -> Affected:
    """What all proofs of this user say is affected."""
    affected = first.affected
    for each in proofs(store):
        affected = affected.plus(each.affected) if each.mark == first.mark else affected
    return affected
