"""Models that were made while their data was being forgotten: every stage that makes or promotes a model asks here, and
what turns up is blocked, tagged and added to the proofs."""

import secrets
from datetime import datetime

from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.governance.erasure import mirrored
from pipeline.governance.erasure.proof import Affected, ErasureProof, proofs, publish
from pipeline.registry import versions
from pipeline.rollout.blocks import block, blocking
from pipeline.training.result import TrainingResult


def blocked_iteration(store: Store, registry_uri: str, iteration: Iteration, now: datetime) -> str:
    """Why nothing may be made of an iteration any more; "" where no erasure blocks it."""
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
        first = store.read(layout.proof(each.proof), ErasureProof)
        if first is None:
            continue
        known = first.affected
        for proof in proofs(store):
            known = known.plus(proof.affected) if proof.mark == first.mark else known
        if known.plus(late) != known:
            new = ErasureProof(
                id=secrets.token_hex(8), mark=first.mark, since=first.since, follows=first.id,
                requested=now, finished=now, affected=late,
            )  # fmt: skip
            publish(store, new, now)
    list(mirrored.remove(store, [iteration.id]))  # what a trainer that was killed put there last
    reason = active_blocks[0].reason
    return f"iteration {iteration.id} is blocked: {reason}. Materialise the traces for a new iteration."
