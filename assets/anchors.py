"""The audit log's head in Dagster's event storage, which the data root does not hold, and in a bucket with object lock.

Every step of a run leaves it there when it ends, and so does every command that decides or forgets.

Owns two assets without a definition, `audit_log` and `forgotten_users`, whose observations are the anchors. Refuses to
compare anything: `pt governance verify` does. An instance that cannot be reached fails nobody.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from assets.environment import environment
from pipeline.anchor_bucket import AnchorBucket
from pipeline.audit_anchors import Anchor, HeadToAnchor, log_identity, note_anchored, to_anchor
from pipeline.storage import Store
from pipeline.traces.erased import ErasedUser, ErasedUsers, erased_users, reach, recognising_keys

HEADS, USERS = dg.AssetKey("audit_log"), dg.AssetKey("forgotten_users")
PAGE = 1000


def bucket() -> AnchorBucket | None:
    """The bucket with object lock that the environment names. Raises ValueError where it names something else."""
    uri = environment().anchors_address()
    return AnchorBucket(uri) if uri else None


def drop_anchor(instance: dg.DagsterInstance | None, store: Store) -> bool:
    """Anchor the log's head and who was forgotten since the last anchor, in Dagster and in the bucket, where there is
    one; whether there was anything new. Raises what either raises, after both were asked."""
    anchor = to_anchor(store)
    if anchor is None:
        return False
    locked = bucket()
    try:
        if locked is not None:
            locked.put(str(store.root), anchor, datetime.now(UTC))
    finally:
        if instance is not None:
            _observe(instance, store, anchor)
    if instance is not None or locked is not None:
        note_anchored(store, anchor)
    return True


def _observe(instance: dg.DagsterInstance, store: Store, anchor: HeadToAnchor) -> None:
    where: dict[str, Any] = {"root": str(store.root), "log": anchor.log}
    if anchor.forgotten:  # first: a head that is anchored is not looked at again
        users = ErasedUsers(users=anchor.forgotten).model_dump(mode="json")
        instance.report_runless_asset_event(dg.AssetObservation(USERS, metadata={**where, "forgotten": users}))
    metadata = {**where, "n": anchor.head.n, "digest": anchor.head.digest}
    instance.report_runless_asset_event(dg.AssetObservation(HEADS, metadata=metadata))


def anchors(instance: dg.DagsterInstance) -> Iterator[Anchor]:
    """Every anchor of every data root, newest first."""
    for at, values in _observed(instance, HEADS):
        yield Anchor(at, values["root"], values["log"], int(values["n"]), values["digest"], "Dagster")


def forgotten_elsewhere(instance: dg.DagsterInstance, store: Store) -> list[ErasedUser]:
    """Who was forgotten here, as the anchors have it, and is not on the list, which was put back from a backup; and
    who is on the list, and whose erasure was never begun again."""
    from pipeline.erasure.reapply import unbegun  # arrow and pandas, which a look before a launch does without

    root, log = str(store.root), log_identity(store)
    anchored: dict[str, ErasedUser] = {}
    for _, values in _observed(instance, USERS):
        if values["root"] == root or (log and values["log"] == log):
            for user in ErasedUsers.model_validate(values["forgotten"]).users:
                anchored[user.mark] = max(user, anchored.get(user.mark, user), key=reach)
    listed = {user.mark: user for user in erased_users(store).users}
    again = unbegun(store)
    if not anchored:
        return again
    chain = recognising_keys(store, forgetting=True)
    raised = [user.model_copy(update={"mark": chain.raised(user.mark)}) for user in anchored.values()]
    return [*again, *(u for u in raised if u.mark not in listed or reach(listed[u.mark]) < reach(u))]


def refuse_restored(instance: dg.DagsterInstance, store: Store) -> None:
    """Raises ValueError where users were forgotten whom this data root has again: they go before rows are read."""
    if users := forgotten_elsewhere(instance, store):
        raise ValueError(
            f"{store.root} is older than {len(users)} erasures that Dagster's instance knows of: it was restored from "
            "a backup, and has users again who were forgotten. Nothing is read. Run: pt governance reapply"
        )


def _observed(instance: dg.DagsterInstance, key: dg.AssetKey) -> Iterator[tuple[float, dict[str, Any]]]:
    cursor: str | None = None
    while True:
        page = instance.fetch_observations(key, limit=PAGE, cursor=cursor)
        for record in page.records:
            observation = record.asset_observation
            if observation is not None:
                yield record.timestamp, {name: value.value for name, value in observation.metadata.items()}
        if not page.has_more:
            return
        cursor = page.cursor
