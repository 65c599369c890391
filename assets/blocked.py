"""What an erasure blocks, asked by every stage that makes a model, judges one or puts it on record."""

from datetime import UTC, datetime

import dagster as dg

from assets.outcome import conclude
from assets.resources import Deployment
from pipeline.core.iteration import Iteration
from pipeline.governance.erasure.late import blocked_iteration


def refuse_blocked(deployment: Deployment, iteration: Iteration) -> None:
    """Raises dagster.Failure, which no retry cures, where an erasure took data of the iteration away; what it has made
    by now is tagged in MLflow and in the proof then."""
    store = deployment.store()
    reason = blocked_iteration(store, deployment.registry_uri(), iteration, datetime.now(UTC))
    if reason:
        conclude(store, iteration, "refused", reason)
        raise dg.Failure(reason, allow_retries=False)
