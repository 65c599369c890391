"""The end of an iteration, and what Dagster shows of it and of a look at the rollout. What is shown fails no stage."""

import time
from datetime import UTC, datetime

import dagster as dg

from assets.kpi.fold import read_kpi
from assets.kpi.observation import KPI, kpi_observation
from assets.outcome import Ending, conclude
from assets.report import write_report
from assets.resources import Deployment
from pipeline.core.iteration import Iteration
from pipeline.core.markdown import literal
from pipeline.governance.erasure.late import blocked_iteration
from pipeline.rollout.status import RolloutStatus
from pipeline.views.rollout import arm_rows, sentences, stage_marks

SIGNS = {"done": "✔", "now": "▶", "held": "‖", "undone": "✘", "next": "·"}


def end(
    context: dg.AssetExecutionContext, deployment: Deployment, iteration: Iteration, ending: Ending, detail: str
) -> None:
    conclude(deployment.store(), iteration, ending, detail)
    show_figures(context, deployment, iteration.id)


def refuse_blocked(deployment: Deployment, iteration: Iteration) -> None:
    """Raises dagster.Failure, which no retry cures, where an erasure took data of the iteration away; what it has made
    by now is tagged in MLflow and in the proof then."""
    store = deployment.store()
    reason = blocked_iteration(store, deployment.registry_uri(), iteration, datetime.now(UTC))
    if reason:
        conclude(store, iteration, "refused", reason)
        raise dg.Failure(reason, allow_retries=False)


def show_figures(context: dg.OpExecutionContext | dg.AssetExecutionContext, deployment: Deployment, id: str) -> None:
    try:
        store, recipe = deployment.store(), deployment.recipe()
        page = write_report(store, recipe, id, time.time())
        context.log_event(kpi_observation(deployment.key(KPI), read_kpi(store, recipe), str(page)))
    except Exception as error:  # boundary: a picture of what has ended well
        context.log.warning(f"The key figures are not shown: {error!r}. pt report {id} makes the page.")


def rollout_observation(canary: dg.AssetKey, report: RolloutStatus, now: float) -> dg.AssetObservation:
    """One look, to be logged by the run that took it. `canary`: the key of the model's asset."""
    tags = {"rollout": report.rollout, "phase": str(report.phase)} if report.rollout else {}
    return dg.AssetObservation(canary, metadata=rollout_metadata(report, now), tags=tags)


def rollout_metadata(report: RolloutStatus, now: float) -> dict[str, dg.MetadataValue]:
    """The figures that Dagster draws over time, and the picture of the terminal in Markdown."""
    figures: dict[str, float | None] = {"canary weight in percent": report.weight}
    for name, arm in (("champion", report.champion), ("canary", report.canary)):
        if arm is not None:
            figures |= {f"{name} requests": arm.requests, f"{name} users": arm.users, f"{name} graded": arm.graded}
            shares = {"right": arm.quality.value, "errors": arm.errors, "slow": arm.slow}
            figures |= {f"{name} {what} in percent": s and round(100 * s, 2) for what, s in shares.items()}
    figures |= {"dwell in seconds": round(report.dwell_s, 1), "looks": report.looks}
    shown: dict[str, dg.MetadataValue] = {
        "phase": dg.MetadataValue.text(str(report.phase)),
        "why": dg.MetadataValue.text(report.reason),
        "rollout": dg.MetadataValue.md(_markdown(report, now)),
    }
    return shown | {name: dg.MetadataValue.float(float(value)) for name, value in figures.items() if value is not None}


def _markdown(report: RolloutStatus, now: float) -> str:
    marks = [f"{SIGNS[each.progress]} {each.weight}% ({each.done:.0%} of its dwell)" for each in stage_marks(report)]
    arms = [f"| {row.name} | {row.champion} | {row.canary} | {literal(row.note)} |" for row in arm_rows(report)]
    if arms:
        arms = ["| | champion | canary | |", "| --- | --- | --- | --- |", *arms]
    told = [f"- **{name}**: {literal(text)}" for name, text in sentences(report, now)]
    return "\n\n".join(part for part in (" → ".join(marks), "\n".join(arms), "\n".join(told)) if part)
