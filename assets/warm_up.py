"""The prompts that warm a slot up: the newest of the candidate's own iteration whose people agree still."""

from collections.abc import Sequence

import pyarrow.parquet as pq

from assets.records import LABELS, TRACES
from assets.resources import Deployment
from pipeline.core.storage import ModelRef
from pipeline.rollout.warm_up import newest, warm_up
from pipeline.selection.consent import consented
from pipeline.serving.served_names import served_name
from pipeline.traces.context import Log
from pipeline.traces.erased import shared_lock

ID_COLUMNS = ("trace_id", "observation_id", "timestamp", "consent")


def warmed(deployment: Deployment, servers: Sequence[str], model: ModelRef, iteration: str, log: Log) -> str:
    """Ask the servers of a model what was asked of production; why they are not ready for users, or "".

    `servers`: root URLs; () where they are reached through their router alone. `iteration`: id of the candidate's.
    Without its labels there is nothing to ask, which is logged. Nobody is forgotten between the look at who agrees and
    the last answer.
    """
    store = deployment.store()
    if not servers:
        log("warm-up: none, for the slot's servers are reached through their router alone")
        return ""
    with shared_lock(store):
        try:
            prompts = _recent_prompts(deployment, iteration)
        except (ValueError, OSError) as reason:  # a rollout whose iteration is gone goes on all the same
            log(f"warm-up: none, {reason}")
            return ""
        reason = warm_up(servers, served_name(deployment.recipe().base_model.name, model.digest), prompts)
    if not reason:
        log(f"warm-up: {len(prompts)} recent prompts were asked at {', '.join(servers)}, and answered to nobody")
    return reason


def _recent_prompts(deployment: Deployment, iteration: str) -> list[str]:
    """Chat messages as JSON. Raises ValueError where the iteration's records or its dataset are gone."""
    store = deployment.store()
    labels, traces = LABELS.read(store, iteration), TRACES.read(store, iteration)
    agreed = consented(store, deployment.lake(), traces.iteration.dataset)
    chosen = set(newest(pq.read_table(labels.dataset.uri, columns=list(ID_COLUMNS)).to_pylist(), agreed))
    among = [("trace_id", "in", [trace for trace, _ in chosen])]
    columns = ["trace_id", "observation_id", "prompt"]
    rows = pq.read_table(labels.dataset.uri, columns=columns, filters=among).to_pylist() if chosen else []
    return [row["prompt"] for row in rows if (row["trace_id"], row["observation_id"]) in chosen]
