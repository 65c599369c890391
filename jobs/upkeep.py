"""Governance as jobs: forgetting a user, and the weekly upkeep of the governed table. Dagster keeps the configuration
of every run: name the user by an environment variable, `user_id: {env: FORGET_USER}`."""

from datetime import datetime

import dagster as dg

from assets.resources import Deployment
from jobs.governance import drop_overdue, forget_user, keep_up, report_lines
from jobs.preference_tuning import executor
from pipeline.core import layout


@dg.op(
    config_schema={
        "user_id": dg.Field(dg.StringSource, description="The source's id of the user, or better {env: A_VARIABLE}."),
        "since": dg.Field(str, default_value="", description="ISO date or time, UTC: only rows from then on."),
    }
)
def forget_one(context: dg.OpExecutionContext, deployment: Deployment) -> None:
    """Erase a user's rows, block what learned from them, and leave a proof."""
    since = context.op_config["since"]
    proof = forget_user(
        deployment,
        context.op_config["user_id"],
        datetime.fromisoformat(since) if since else None,
        context.log.info,
    )
    context.log.info("\n".join(report_lines(proof, str(deployment.store().path(layout.proof(proof.id))))))
    if proof.remains:
        raise dg.Failure(
            f"{len(proof.remains)} files of yours still name the user as owner: see the log.", allow_retries=False
        )


@dg.job(executor_def=executor)
def forget():
    """Removes a user from every live table and from disk, and blocks the models that saw the data."""
    forget_one()


@dg.op
def drop_what_is_overdue(context: dg.OpExecutionContext, deployment: Deployment) -> None:
    """Retention: governed days and raw files past the recipe's days."""
    done = drop_overdue(deployment, context.log.info)
    if done.raw_overdue:
        context.log.warning(f"{len(done.raw_overdue)} parts of the source are overdue: their owner has to delete them.")


@dg.op(ins={"after": dg.In(dg.Nothing)})
def tidy_the_table(context: dg.OpExecutionContext, deployment: Deployment) -> None:
    """Compaction, expiry of old snapshots, and the sweep of files that nothing names any more."""
    keep_up(deployment, context.log.info)


@dg.job(executor_def=executor)
def lake_upkeep():
    """Retention, then snapshot expiry and the sweep of unreachable files."""
    tidy_the_table(after=drop_what_is_overdue())
